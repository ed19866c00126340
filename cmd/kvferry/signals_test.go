package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestInterrupts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		at   []time.Duration // signals
		dies int             // at which of them; 0: at none
	}{
		{"one", []time.Duration{0}, 0},
		{"two within milliseconds, as timeout sends them", []time.Duration{0, time.Millisecond}, 0},
		{"two, a moment before clean-up is over", []time.Duration{time.Second, time.Second + cleanUpTime - 1}, 0},
		{"two, when clean-up is over", []time.Duration{time.Second, time.Second + cleanUpTime}, 2},
		{"three", []time.Duration{0, time.Millisecond, 2 * time.Millisecond}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				arrived, done := make(chan os.Signal), make(chan struct{})
				cancelled, died := 0, 0
				sent := 0
				go interrupts(arrived, done, func() {
					if cancelled++; sent != 1 {
						t.Errorf("cancelled at signal %d", sent)
					}
				}, func(s os.Signal) {
					if died = sent; s != syscall.SIGTERM {
						t.Errorf("dies of %v", s)
					}
				})
				began := time.Now()
				for _, at := range c.at {
					time.Sleep(at - time.Since(began)) // virtual
					sent++
					arrived <- syscall.SIGTERM
					synctest.Wait()
				}
				if cancelled != 1 || died != c.dies {
					t.Errorf("cancelled %d times, died at signal %d, want 1 and %d", cancelled, died, c.dies)
				}
				close(done)
			})
		})
	}
}

// A process that gets a second signal while it tidies up goes on with that, and prints what it has. Here it hangs at the printing,
// because its pipe is full.
func TestTwoSignals(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	if err := in.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(bytes.Repeat([]byte{'\n'}, 4<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the pipe is not full: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), self, "bench", "wan", "--listen", "127.0.0.1:0", "--target", "127.0.0.1:9", "-o", "json")
	cmd.Args[0] = "kvferry" // see TestMain
	cmd.Stdout = in
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cmd.Start(), in.Close()); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	words := strings.Fields(line) // relay: UDP 127.0.0.1:1234 -> ...
	if err != nil || len(words) < 3 {
		t.Fatalf("it says %q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; { // until its socket is closed
		if c, err := net.ListenPacket("udp", words[2]); err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a signal does not end it")
		}
		runtime.Gosched()
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	printed, err := io.ReadAll(out)
	if err := errors.Join(err, cmd.Wait()); err != nil || !bytes.Contains(printed, []byte(`"form": "relay"`)) {
		t.Errorf("it ends with %v and prints %q", err, bytes.TrimSpace(printed))
	}
}
