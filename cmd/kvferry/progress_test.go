package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// steps plays a transfer of ten seconds: a message each half second.
func steps(p *progress) {
	p.update(&pb.Migration{State: pb.MigrationState_MIGRATION_STATE_LOCATING})
	p.update(&pb.Migration{State: pb.MigrationState_MIGRATION_STATE_RESERVING, Plan: &pb.Plan{Reason: "fetch is faster"}})
	for i := range int64(20) {
		p.update(&pb.Migration{
			State:    pb.MigrationState_MIGRATION_STATE_TRANSFERRING,
			Progress: &pb.MigrationProgress{PagesDone: i, PagesTotal: 20, BytesDone: i << 20, BytesTotal: 20 << 20},
		})
		time.Sleep(500 * time.Millisecond)
	}
	p.update(&pb.Migration{State: pb.MigrationState_MIGRATION_STATE_COMMITTED})
	p.close()
	p.close()
}

func TestProgressLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := &app{stderr: &out}
		steps(a.newProgress("chat", "r1"))
		want := `migrating chat, request id r1
LOCATING
RESERVING: fetch is faster
TRANSFERRING
  4 of 20 pages, 4.0 MiB of 20.0 MiB
  8 of 20 pages, 8.0 MiB of 20.0 MiB
  12 of 20 pages, 12.0 MiB of 20.0 MiB
  16 of 20 pages, 16.0 MiB of 20.0 MiB
COMMITTED
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestProgressQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := &app{stderr: &out, output: outputJSON}
		steps(a.newProgress("chat", "r1"))
		if out.Len() != 0 {
			t.Errorf("with -o json and no terminal: %q", &out)
		}
	})
}

// On a terminal a bar is there after two seconds and not before; its goroutines end with it (the bubble would not).
func TestProgressBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := (&app{stderr: &out, terminal: true}).newProgress("chat", "r1")
		m := &pb.Migration{
			State:    pb.MigrationState_MIGRATION_STATE_TRANSFERRING,
			Progress: &pb.MigrationProgress{BytesDone: 1 << 20, BytesTotal: 20 << 20},
		}
		p.update(m)
		if p.bars != nil {
			t.Error("a bar before two seconds")
		}
		time.Sleep(barAfter)
		p.update(m)
		if p.bars == nil {
			t.Error("no bar after two seconds")
		}
		time.Sleep(time.Second)
		m.Progress.BytesDone = 20 << 20
		p.update(m)
		time.Sleep(time.Second)
		p.update(&pb.Migration{State: pb.MigrationState_MIGRATION_STATE_COMMITTED})
		p.close()
		if p.bars != nil {
			t.Error("the bar is still there")
		}
		for _, want := range []string{"1.0 MiB / 20.0 MiB", "20.0 MiB / 20.0 MiB", "COMMITTED"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in %q", want, out.String())
			}
		}
	})
}

// A migration that fails half way leaves its bar where it was.
func TestProgressBarAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := (&app{stderr: &out, terminal: true}).newProgress("chat", "r1")
		time.Sleep(barAfter)
		p.update(&pb.Migration{
			State:    pb.MigrationState_MIGRATION_STATE_TRANSFERRING,
			Progress: &pb.MigrationProgress{BytesDone: 1 << 20, BytesTotal: 20 << 20},
		})
		time.Sleep(time.Second)
		p.close()
		if strings.Contains(out.String(), "20.0 MiB / 20.0 MiB") {
			t.Errorf("an aborted bar was completed: %q", out.String())
		}
	})
}
