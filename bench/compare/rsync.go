package compare

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/wanns"
)

// rsyncEnds are an ssh server in one namespace and what rsync in the other one needs to reach it: keys of their own, in a folder that
// goes with them.
type rsyncEnds struct {
	tools  *rsyncTools
	path   *wanns.Path
	dir    string
	sshd   *exec.Cmd
	log    tail
	bytes  int64
	digest uint32
}

const rsyncPort = "2222"

func openRsync(ctx context.Context, tools *rsyncTools, path *wanns.Path, cfg WANConfig) (_ *rsyncEnds, err error) {
	base := ""
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		base = "/dev/shm" // no disk in the measurement
	}
	e := &rsyncEnds{tools: tools, path: path, bytes: cfg.Bytes}
	if e.dir, err = os.MkdirTemp(base, "kvferry-rsync-*"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	m := newMemory(cfg.Bytes, cfg.PageBytes)
	if err := m.fill(cfg.Seed, true); err != nil {
		return nil, err
	}
	e.digest = m.digest()
	if err := errors.Join(os.WriteFile(e.file("from"), m.b, 0o600), os.Mkdir(e.file("to"), 0o700), os.MkdirAll("/run/sshd", 0o755)); err != nil {
		return nil, err
	}
	for _, key := range []string{"host", "user"} {
		if out, err := exec.CommandContext(ctx, tools.keygen, "-q", "-t", "ed25519", "-N", "", "-f", e.file(key)).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ssh-keygen: %w: %s", err, out)
		}
	}
	config := strings.Join([]string{
		"Port " + rsyncPort, "ListenAddress " + path.Addr(wanns.A).String(), "HostKey " + e.file("host"), "AuthorizedKeysFile " + e.file("user.pub"),
		"StrictModes no", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin prohibit-password", "PidFile none", "UseDNS no", "",
	}, "\n")
	if err := os.WriteFile(e.file("sshd_config"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	// BBR below, in both namespaces: they are ours alone.
	for _, side := range []wanns.Side{wanns.A, wanns.B} {
		if err := path.Do(side, func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("bbr"), 0o644) }); err != nil {
			return nil, fmt.Errorf("BBR in a namespace: %w", err)
		}
	}
	e.sshd = exec.CommandContext(ctx, tools.sshd, "-D", "-e", "-f", e.file("sshd_config"))
	e.sshd.Stderr, e.sshd.WaitDelay = &e.log, time.Second
	ownGroup(e.sshd)
	if err := path.Do(wanns.A, e.sshd.Start); err != nil {
		e.sshd = nil
		return nil, fmt.Errorf("start sshd: %w", err)
	}
	return e, e.ready(ctx)
}

func (e *rsyncEnds) file(name string) string { return filepath.Join(e.dir, name) }

func (e *rsyncEnds) ssh() []string {
	return []string{
		e.tools.ssh, "-p", rsyncPort, "-i", e.file("user"), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
	}
}

// ready waits until the server lets us in.
func (e *rsyncEnds) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		args := append(e.ssh()[1:], "root@"+e.path.Addr(wanns.A).String(), "true")
		out, err := e.in(exec.CommandContext(ctx, e.tools.ssh, args...))
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("ssh to the other namespace: %w: %s %s", err, out, e.log.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// in runs a command in the destination's namespace, in a process group of its own, all of which ends with its context.
func (e *rsyncEnds) in(cmd *exec.Cmd) ([]byte, error) {
	var out tail
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
	ownGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd) }
	if err := e.path.Do(wanns.B, cmd.Start); err != nil {
		return nil, err
	}
	err := cmd.Wait()
	return []byte(out.String()), err
}

// move copies the file once; one that is cut short counts what is there.
func (e *rsyncEnds) move(ctx context.Context, limit time.Duration) (*Turn, error) {
	to := filepath.Join(e.file("to"), "from")
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	tctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(tctx, e.tools.rsync, "--inplace", "--whole-file", "-e", strings.Join(e.ssh(), " "), "root@"+e.path.Addr(wanns.A).String()+":"+e.file("from"), e.file("to")+"/")
	began := time.Now()
	out, err := e.in(cmd)
	r := &Turn{Seconds: time.Since(began).Seconds()}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil && tctx.Err() == nil {
		return nil, fmt.Errorf("rsync: %w: %s %s", err, out, e.log.String())
	}
	f, err := os.Open(to)
	if errors.Is(err, os.ErrNotExist) && tctx.Err() != nil {
		return r, nil // not a byte came
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	h := crc32.New(castagnoli)
	if r.Bytes, err = io.Copy(h, f); err != nil {
		return nil, err
	}
	r.Gbps = float64(r.Bytes) * 8 / 1e9 / r.Seconds
	if tctx.Err() == nil && (r.Bytes != e.bytes || h.Sum32() != e.digest) {
		return nil, errors.New("rsync: the bytes differ")
	}
	return r, nil
}

func (e *rsyncEnds) close() error {
	if e.sshd != nil {
		_ = killGroup(e.sshd) // fails when it is gone
		_ = e.sshd.Wait()     // says that it was killed
	}
	return os.RemoveAll(e.dir)
}
