//go:build chaos

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/kvferry/kvferry/internal/fault"
)

const (
	progressEvery = 2 * time.Second
	// hangs is how long a run may take before its process is asked for its goroutines and ended.
	hangs = 2 * time.Minute
	// tailLines are kept of a process that dies.
	tailLines = 300
)

// parent has processes do runs, and adds up what came of them.
type parent struct {
	t          *testing.T
	first, end uint64
	workers    int
	planted    fault.Bug // "": none; else the first run that is broken is the last
	quiet      bool
	folders    string // of all its processes' runs

	began time.Time
	mu    struct {
		sync.Mutex
		done    int
		kinds   map[string]int
		took    time.Duration
		virtual time.Duration
		bad     []result
		fired   map[string]int            // by kind
		runs    map[string]int            // with the kind in them
		table   map[string]map[string]int // kind, then end
		ends    map[string]int
	}
}

// run does all runs.
func (p *parent) run() {
	p.began = time.Now()
	var err error
	if p.folders, err = os.MkdirTemp(memoryFolder(p.t), folderPattern); err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(p.folders) }() // a process that dies leaves its own
	p.mu.kinds = map[string]int{}
	p.mu.fired, p.mu.runs, p.mu.table, p.mu.ends = map[string]int{}, map[string]int{}, map[string]map[string]int{}, map[string]int{}
	var wg sync.WaitGroup
	for w := range p.workers {
		wg.Go(func() { p.worker(uint64(w)) })
	}
	stop := make(chan struct{})
	var ticker sync.WaitGroup
	ticker.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.progress()
			case <-stop:
				return
			}
		}
	})
	wg.Wait()
	close(stop)
	ticker.Wait()
}

func (p *parent) progress() {
	if p.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	total := int(p.end - p.first)
	left := "?"
	if p.mu.done > 0 {
		left = (time.Since(p.began) * time.Duration(total-p.mu.done) / time.Duration(p.mu.done)).Round(time.Second).String()
	}
	fmt.Fprintf(os.Stderr, "chaos: %d of %d runs, %d broken, %s left\n", p.mu.done, total, len(p.mu.bad), left)
}

// worker does every workers-th run, in one process after the other: one that dies takes a run with it.
func (p *parent) worker(w uint64) {
	for seed := p.first + w; seed < p.end && !p.enough(); {
		last, begun, tail := p.process(seed)
		if last >= p.end || p.enough() {
			return
		}
		if !begun {
			p.add(result{Seed: seed, Failures: []failure{{"process", "it did not begin"}}, Text: tail})
			return
		}
		p.add(result{Seed: last, Failures: []failure{{"process", "the process ended within the run"}}, Text: plan(last).String() + tail})
		seed = last + uint64(p.workers)
	}
}

// enough says that a planted bug is found.
func (p *parent) enough() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.planted != "" && len(p.mu.bad) > 0
}

// process does runs from seed on in a process of its own. It returns the seed of the run that it ended in, or an end beyond all, and its last words.
func (p *parent) process(seed uint64) (last uint64, begun bool, tail string) {
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestShard$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d", shardEnv, seed, p.workers, p.end), "GOMAXPROCS=2", "GOTRACEBACK=all", "KVFERRY_PLANTED="+string(p.planted), foldersEnv+"="+p.folders)
	r, w, err := os.Pipe()
	if err != nil {
		return seed, false, err.Error()
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		_ = r.Close()
		return seed, false, err.Error()
	}
	_ = w.Close()
	dog := time.AfterFunc(hangs, func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		time.AfterFunc(10*time.Second, cancel)
	})
	defer dog.Stop()
	last, finished := seed, false
	var lines []string
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, lineBegin); ok {
			begun, finished = true, false
			_, _ = fmt.Sscan(text, &last)
			dog.Reset(hangs)
			lines = lines[:0]
		} else if text, ok := strings.CutPrefix(line, lineEnd); ok {
			var res result
			if jerr := json.Unmarshal([]byte(text), &res); jerr == nil {
				finished = true
				p.add(res)
			}
			if p.enough() {
				cancel()
			}
		} else if len(lines) < tailLines {
			lines = append(lines, line)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				lines = append(lines, err.Error())
			}
			break
		}
	}
	_ = r.Close()
	werr := cmd.Wait()
	if finished {
		if last+uint64(p.workers) >= p.end {
			return p.end, true, ""
		}
		last += uint64(p.workers) // it died between two
	}
	return last, begun, fmt.Sprintf("%s\n%v\n", strings.Join(lines, "\n"), werr)
}

// add takes in one run.
func (p *parent) add(res result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.done++
	p.mu.took += res.Took
	p.mu.virtual += res.Virtual
	p.mu.kinds[res.Kind]++
	for kind, n := range res.Fired {
		p.mu.fired[kind] += n
		p.mu.runs[kind]++
		if p.mu.table[kind] == nil {
			p.mu.table[kind] = map[string]int{}
		}
		for end, n := range res.Outcomes {
			p.mu.table[kind][column(end)] += n
		}
	}
	for end, n := range res.Outcomes {
		p.mu.ends[end] += n
	}
	if len(res.Failures) > 0 {
		p.mu.bad = append(p.mu.bad, res)
		if p.quiet {
			return
		}
		fmt.Fprintf(os.Stderr, "chaos: seed %d: %s\n", res.Seed, describe(res.Failures))
	}
}

func describe(all []failure) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "\n  %s: %s", f.Check, f.What)
	}
	return b.String()
}

var columns = []string{"committed", "recompute", "redirect", "cancelled", "failed", "refused", "died"}

// column is where a migration's end is counted.
func column(end string) string {
	word, _, _ := strings.Cut(strings.ToLower(end), " ")
	switch word {
	case "daemon", "no":
		return "died"
	}
	return word
}

// print writes the table, and fails the test for runs that were broken.
func (p *parent) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "fault\tstruck\truns\t%s\t\n", strings.Join(columns, "\t"))
	for _, kind := range slices.Sorted(maps.Keys(p.mu.fired)) {
		fmt.Fprintf(w, "%s\t%d\t%d\t", kind, p.mu.fired[kind], p.mu.runs[kind])
		for _, c := range columns {
			fmt.Fprintf(w, "%d\t", p.mu.table[kind][c])
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	fmt.Println("\nA run's migrations count in the row of each fault that struck in it. Ends of all migrations:")
	for _, end := range slices.Sorted(maps.Keys(p.mu.ends)) {
		fmt.Printf("%8d  %s\n", p.mu.ends[end], end)
	}
	fmt.Printf("\n%d runs (%d gentle, %d of one host), %d broken, in %v (%.2f s a run and process, %v of virtual time)\n", p.mu.done, p.mu.kinds[gentle], p.mu.kinds[oneHost], len(p.mu.bad),
		time.Since(p.began).Round(time.Second), p.mu.took.Seconds()/float64(max(p.mu.done, 1)), p.mu.virtual.Round(time.Second))
	fmt.Printf("again: make chaos N=%d SEED=%d\n", p.end-p.first, p.first)
	slices.SortFunc(p.mu.bad, func(a, b result) int { return int(int64(a.Seed) - int64(b.Seed)) })
	for i, res := range p.mu.bad {
		text := res.Text
		if i >= 3 {
			text = "(run it alone to see what happened)\n"
		}
		p.t.Errorf("seed %d: %s\n\n%s\nalone: make chaos N=1 SEED=%d\n", res.Seed, describe(res.Failures), text, res.Seed)
	}
}
