package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/internal/doctor"
	"github.com/kvferry/kvferry/internal/engineload"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (a *app) newDoctor() *cobra.Command {
	var file string
	var peers, engines []string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out why a node does not work, and what to do about it",
		Long: `doctor looks at the configuration, certificates, limits and filesystems of this host, the daemon that runs here, its GPUs
and engines, and at UDP to every peer, and says for everything that is wrong what to do.

It takes 10 seconds at most and changes nothing. To a peer it sends a few datagrams that any QUIC server answers, then opens
one connection with this node's certificate and makes one call without effect. That proves both ways of flows that begin here;
those that the peer begins are proven by a doctor there, so run it on both hosts.

Without --config it looks at the host, at the daemon at --addr and at the peers of that daemon; with --ca, --cert and --key at
those certificates too. Run it as the user of kvferryd: rights and limits are those of the caller.

Exit status: 0 nothing fails, with or without warnings; 1 something fails.`,
		Example: `  kvferry doctor --config /etc/kvferry/kvferryd.yaml
  kvferry doctor --config /etc/kvferry/kvferryd.yaml --peer us-1 --engine-metrics http://127.0.0.1:8000/metrics
  kvferry doctor -o json | jq '.findings[] | select(.status == "fail")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("timeout") {
				return usagef("", "no --timeout", "--timeout has no meaning for doctor: each check has a limit of its own, all take 10 seconds at most")
			}
			for _, url := range engines {
				if err := (engineload.Config{URL: url}).Validate(); err != nil {
					return usagef(url, "an http or https address such as http://127.0.0.1:8000/metrics", "--engine-metrics: %v", err)
				}
			}
			s := doctor.Setup{Peers: peers, Engines: engines, ConfigPath: file}
			s.Config.TLS = daemon.TLSConfig{CA: a.ca, Cert: a.cert, Key: a.key}
			if file != "" {
				s.Configured = true
				s.Config, s.ConfigErr = readConfig(file)
			}
			asked := cmd.Flags().Changed("addr") || os.Getenv("KVFERRY_ADDR") != ""
			return a.doctor(cmd.Context(), s, asked)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&file, "config", "", "kvferryd's YAML file")
	fl.StringSliceVar(&peers, "peer", nil, "look at this peer only, by node id; may be repeated (default: all)")
	fl.StringSliceVar(&engines, "engine-metrics", nil, "metrics address of an engine to look at; may be repeated")
	return cmd
}

// readConfig reads a daemon's file, at most 1 MiB.
func readConfig(path string) (daemon.Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return daemon.Config{}, err
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost
	data, err := io.ReadAll(io.LimitReader(f, 1<<20+1))
	if err != nil {
		return daemon.Config{}, err
	}
	return daemon.ParseConfig(data)
}

// doctor asks the daemon, runs the checks and prints what they find.
func (a *app) doctor(ctx context.Context, s doctor.Setup, asked bool) error {
	if s.Configured && !asked && s.ConfigErr == nil {
		a.addr = "unix://" + s.Config.WithDefaults().Listen.Unix
	}
	if _, local := unixPath(a.addr); !local && a.ca == "" {
		a.ca, a.cert, a.key = s.Config.TLS.CA, s.Config.TLS.Cert, s.Config.TLS.Key
	}
	s.DaemonAddr, s.DaemonWanted = a.addr, asked || !s.Configured
	s.Daemon, s.DaemonErr = a.askDaemon(ctx)
	if err := knownPeers(s); err != nil {
		return err
	}
	call, err := proto.Marshal(&pb.PeerRequest{Call: &pb.PeerRequest_Locate{Locate: &pb.LocateCall{Session: &pb.SessionRef{SessionId: "kvferry-doctor"}}}})
	if err != nil {
		return fmt.Errorf("encode call: %w", err)
	}
	s.Call = call
	checks := doctor.Checks(s)
	w := a.watch(checks)
	findings := doctor.Run(ctx, checks, doctor.Options{Done: w.done})
	w.close()
	v := viewFindings(findings)
	if err := a.print(v, v.table); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return interrupted("what was not looked at is unknown")
	}
	if len(v.failing) > 0 {
		return &fault{Code: exitFailed, Reason: "UNWELL", Message: fmt.Sprintf("%d of %d checks fail: %s", len(v.failing), len(findings), strings.Join(v.failing, ", ")), Fix: "each failing check's fix, from the top"}
	}
	return nil
}

// askDaemon is what the daemon at --addr says about itself; an error is a finding, not a failure.
func (a *app) askDaemon(ctx context.Context) (*doctor.Daemon, error) {
	pid := 0
	if path, local := unixPath(a.addr); local { // what the system says of a socket is plainer than what gRPC makes of it
		var err error
		if pid, err = doctor.SocketOwner(path); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
	}
	conn, err := a.dial()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the call's own error is known
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	region := pb.NewRegionServiceClient(conn)
	st, err := region.Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return nil, faultOf(err)
	}
	links, err := region.ListLinks(ctx, &pb.ListLinksRequest{})
	if err != nil {
		return nil, faultOf(err)
	}
	d := &doctor.Daemon{Node: st.GetNode().GetNodeId(), Region: st.GetNode().GetRegionId(), Incarnation: st.GetNode().GetIncarnation(), Version: st.GetVersion(), PID: pid}
	for _, ar := range st.GetArenas() {
		d.ArenaBytes += ar.GetSlots() * ar.GetBlockBytes()
		if ar.GetBroken() {
			d.Broken = append(d.Broken, ar.GetEngineId())
		}
		if ar.GetPinNote() != "" {
			d.PinNotes = append(d.PinNotes, ar.GetEngineId()+": "+ar.GetPinNote())
		}
	}
	for _, l := range links.GetLinks() {
		d.Links = append(d.Links, doctor.Link{
			Node: l.GetPeer().GetNodeId(), Region: l.GetPeer().GetRegionId(), Address: l.GetAddress(), Connected: l.GetConnected(), Error: l.GetError(),
		})
	}
	return d, nil
}

// knownPeers refuses a --peer that neither the configuration nor the daemon knows.
func knownPeers(s doctor.Setup) error {
	if s.ConfigErr != nil || !s.Configured && s.Daemon == nil {
		return nil // the findings say what is wrong
	}
	var known []string
	for _, p := range s.Config.Peers {
		known = append(known, p.Node)
	}
	if !s.Configured {
		for _, l := range s.Daemon.Links {
			if l.Address != "" {
				known = append(known, l.Node)
			}
		}
	}
	for _, p := range s.Peers {
		if !slices.Contains(known, p) {
			return usagef(p, "one of the configured peers: "+orDefault(strings.Join(known, ", "), "there is none"), "--peer %s is not a configured peer", p)
		}
	}
	return nil
}

// findingsView is what doctor prints.
type findingsView struct {
	Findings []doctor.Finding `json:"findings"`
	OK       int              `json:"ok"`
	Warn     int              `json:"warn"`
	Fail     int              `json:"fail"`
	Unknown  int              `json:"unknown"`

	failing []string
}

func viewFindings(findings []doctor.Finding) findingsView {
	v := findingsView{Findings: findings}
	for _, f := range findings {
		switch f.Status {
		case doctor.OK:
			v.OK++
		case doctor.Warn:
			v.Warn++
		case doctor.Fail:
			v.Fail++
			v.failing = append(v.failing, f.Name)
		case doctor.Unknown:
			v.Unknown++
		}
	}
	return v
}

func (v findingsView) table(w io.Writer) {
	row(w, "CHECK", "STATUS", "FOUND")
	for _, f := range v.Findings {
		row(w, f.Name, f.Status, f.Detail)
		if f.Fix != "" {
			row(w, "", "", "fix: "+f.Fix)
		}
	}
	row(w)
	row(w, fmt.Sprintf("%d ok, %d warnings, %d failures, %d unknown", v.OK, v.Warn, v.Fail, v.Unknown))
}

// watch says on stderr what is waited for when it lasts.
type watch struct {
	mu struct {
		sync.Mutex
		waiting []string
	}
	stop    chan struct{}
	printer sync.WaitGroup // one goroutine, until close
}

func (a *app) watch(checks []doctor.Check) *watch {
	w := &watch{stop: make(chan struct{})}
	for _, c := range checks {
		w.mu.waiting = append(w.mu.waiting, c.Name)
	}
	if a.output == outputJSON && !a.terminal {
		return w
	}
	w.printer.Go(func() {
		tick := time.NewTicker(barAfter)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
				w.mu.Lock()
				_, _ = fmt.Fprintf(a.stderr, "waiting for %s\n", strings.Join(w.mu.waiting, ", ")) // a lost line of progress is no failure
				w.mu.Unlock()
			}
		}
	})
	return w
}

func (w *watch) done(f doctor.Finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.waiting = slices.DeleteFunc(w.mu.waiting, func(name string) bool { return name == f.Name })
}

func (w *watch) close() {
	close(w.stop)
	w.printer.Wait()
}
