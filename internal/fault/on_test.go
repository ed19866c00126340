//go:build chaos

package fault

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Each kind strikes at its crossings and at no other, and the log tells of it.
func TestStrikes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		schedule, err := Parse("read:2-3:corrupt,send:1:short,commit:2:kill,receive:1:stall=2s,handover:1:error,reply:1:lose,reserve:1:error")
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		var killed []string
		in := &Injector{Schedule: schedule, Log: &log, Kill: func(at string) { killed = append(killed, at) }}
		defer Install(in)()
		for i, want := range []bool{false, true, true, false} {
			page := make([]byte, 64)
			if err := Page(Read, "a", page); err != nil {
				t.Error(err)
			}
			ones := 0
			for _, b := range page {
				for ; b != 0; b &= b - 1 {
					ones++
				}
			}
			if ones == 1 != want || ones > 1 {
				t.Errorf("read %d: %d bits", i+1, ones)
			}
		}
		if err := At(Send, "a"); !Is(err, Short) {
			t.Errorf("send: %v", err)
		}
		if err := At(Commit, "a"); err != nil {
			t.Errorf("commit 1: %v", err)
		}
		if err := At(Commit, "b"); !Is(err, Kill) || len(killed) != 1 || killed[0] != "b" {
			t.Errorf("commit 2: %v, killed %v", err, killed)
		}
		began := time.Now()
		if err := At(Receive, "a"); err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("receive: %v after %v", err, time.Since(began))
		}
		if err := At(HandOver, "a"); !Is(err, Fails) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("hand-over: %v", err)
		}
		if err := At(Reply, "a"); !Is(err, Lose) {
			t.Errorf("reply: %v", err)
		}
		if err := At(Reserve, "a"); !Is(err, Fails) || errors.Is(err, syscall.ENOSPC) {
			t.Errorf("reserve: %v", err)
		}
		if n := in.Crossings(Read); n != 4 {
			t.Errorf("%d reads", n)
		}
		if got := len(in.Struck()); got != 8 || strings.Count(log.String(), "\n") != got {
			t.Errorf("struck %v, log %q", in.Struck(), log.String())
		}
		if want := "0.000 commit:2:kill at b\n"; !strings.Contains(log.String(), want) {
			t.Errorf("log %q lacks %q", log.String(), want)
		}
	})
	if err := At(Send, "a"); err != nil {
		t.Errorf("after the end: %v", err)
	}
}

func TestPlant(t *testing.T) {
	restore := Plant(SaltDropped, LeaseLost)
	if !Planted(SaltDropped) || !Planted(LeaseLost) || Planted(EpochIgnored) {
		t.Error("wrong bugs")
	}
	restore()
	if Planted(SaltDropped) {
		t.Error("still planted")
	}
}
