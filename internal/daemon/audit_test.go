package daemon

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// auditLine is a line of audit_log.
type auditLine map[string]any

func readAudit(t *testing.T, path string) (out []auditLine) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		var l auditLine
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			t.Fatalf("%q: %v", in.Text(), err)
		}
		out = append(out, l)
	}
	return out
}

// of are the lines of an event, with the fields that are asked for, as text.
func auditOf(lines []auditLine, event string, fields ...string) (out []string) {
	for _, l := range lines {
		if l["event"] != event {
			continue
		}
		text := fmt.Sprint(l["decision"])
		for _, f := range fields {
			text += fmt.Sprintf(" %s=%v", f, l[f])
		}
		out = append(out, text)
	}
	return out
}

// Each grant and refusal of a migration's life leaves one line, at the node that decides, with the same names of fields always, and none
// has a block's key or a page.
func TestAuditLines(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		file := filepath.Join(dir, "policy.yaml")
		policyOf(t, file, "", "r-b * allow")
		f := newFleetEdited(t, fast, func(name string, c *Config, _ *Parts) {
			c.AuditLog = filepath.Join(dir, name+".audit")
			if name == "a" {
				c.Policy = file
			}
		}, "a", "b", "c")
		ea := f.nodes["a"].register("e", testLayout(), 1<<20)
		f.nodes["b"].register("e", testLayout(), 1<<20)
		f.nodes["c"].register("e", testLayout(), 1<<20)
		keys := ea.session("s", 3)
		req := request("s")
		req.SourceHint = "a"
		f.nodes["c"].mustEnd(req, failed, ReasonPolicyDenied, unmoved)
		good := request("s")
		rep := f.nodes["b"].mustEnd(good, committed, "", moved)
		f.net.Cut(f.nodes["b"].ip, f.nodes["a"].ip)
		f.net.Cut(f.nodes["b"].ip, f.nodes["c"].ip)
		take := request("s")
		take.SourceHint, take.Mode, take.Takeover, take.RepinSeq = "b", pb.Mode_MODE_UNSPECIFIED, true, 9
		f.nodes["c"].mustEnd(take, recompute, ReasonPeerUnreachable, moved)
		f.net.Heal(f.nodes["b"].ip, f.nodes["c"].ip)
		time.Sleep(time.Minute) // b hears of it
		a, b, c := readAudit(t, filepath.Join(dir, "a.audit")), readAudit(t, filepath.Join(dir, "b.audit")), readAudit(t, filepath.Join(dir, "c.audit"))
		for _, tc := range []struct {
			lines  []auditLine
			event  string
			fields []string
			want   []string
		}{
			{a, "start", []string{"node", "node_region", "policy_file", "rules"}, []string{"granted node=a node_region=r-a policy_file=" + file + " rules=1"}},
			{a, "register", []string{"engine_id", "bytes"}, []string{"granted engine_id=e bytes=1.048576e+06"}},
			{a, "offer", []string{"peer", "region", "tenant", "session_id", "bytes", "reason", "rule"}, []string{
				"refused peer=c region=r-c tenant= session_id=s bytes=<nil> reason=POLICY_DENIED rule=",
				"granted peer=b region=r-b tenant= session_id=s bytes=24576 reason=<nil> rule=<nil>",
			}},
			{a, "hand_over", []string{"peer", "session_id", "epoch"}, []string{"granted peer=b session_id=s epoch=2"}},
			{b, "migrate", []string{"caller", "session_id", "request_id"}, []string{"granted caller=local session_id=s request_id=" + good.GetRequestId()}},
			{b, "yield", []string{"peer", "region", "session_id", "epoch"}, []string{"granted peer=c region=r-c session_id=s epoch=1"}},
			{c, "takeover", []string{"session_id", "from", "repin_seq"}, []string{"granted session_id=s from=b repin_seq=9"}},
		} {
			if diff := cmp.Diff(tc.want, auditOf(tc.lines, tc.event, tc.fields...)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.event, diff)
			}
		}
		for _, l := range append(append(a, b...), c...) {
			if l["audit"] != true || l["msg"] != "audit" || l["time"] == nil || l["level"] == nil {
				t.Errorf("line %v", l)
			}
		}
		if got := auditOf(a, "offer", "migration_id"); len(got) != 2 || strings.Contains(got[1], "<nil>") {
			t.Errorf("offers %q name no migration", got)
		}
		if rep.GetBytes() != 24576 {
			t.Errorf("%d bytes moved", rep.GetBytes())
		}
		for _, name := range f.names {
			all, err := os.ReadFile(filepath.Join(dir, name+".audit"))
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range keys {
				for what, secret := range map[string][]byte{"a key": k, "a key in hexadecimal": []byte(hex.EncodeToString(k)), "a page": ea.content(k)[:32]} {
					if bytes.Contains(all, secret) {
						t.Errorf("%s's audit holds %s", name, what)
					}
				}
			}
			if st, err := os.Stat(filepath.Join(dir, name+".audit")); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("mode %v, %v", st.Mode(), err)
			}
		}
	})
}

// newTestAuditor writes into a file, or with path "" into the log that it returns.
func newTestAuditor(t *testing.T, path string) (*auditor, *prometheus.Registry, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	a, err := openAudit(path, slog.New(slog.NewJSONHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	a.metrics = &newIdentityMetrics(maker{reg}).audit
	return a, reg, &log
}

// A flood of refusals leaves ten lines in ten seconds and one that counts the rest, a peer and kind; it hides nobody else's line, and all of
// them are in the metrics.
func TestAuditFlood(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit")
		a, reg, _ := newTestAuditor(t, path)
		why := failf(ReasonPolicyDenied, "", "no")
		for range 5000 {
			a.refuse(auditOffer, "mallory", why, slog.String("peer", "mallory"))
		}
		a.refuse(auditOffer, "honest", why, slog.String("peer", "honest"))
		a.grant(auditOffer, "mallory", slog.String("peer", "mallory"))
		a.sweep(time.Now())
		if got := readAudit(t, path); len(got) != 12 || got[10]["peer"] != "honest" || got[11]["decision"] != "granted" {
			t.Errorf("%d lines, the last %v", len(got), got[len(got)-1])
		}
		time.Sleep(auditWindow)
		a.sweep(time.Now())
		got := readAudit(t, path)
		if len(got) != 13 || got[12]["suppressed"] != float64(4990) || got[12]["who"] != "mallory" || got[12]["event"] != "offer" || got[12]["decision"] != "refused" {
			t.Errorf("%d lines, the last %v", len(got), got[len(got)-1])
		}
		a.refuse(auditOffer, "mallory", why)
		if n := len(readAudit(t, path)); n != 14 {
			t.Errorf("%d lines, want one more in the next window", n)
		}
		// However many peers there are, the table is bounded, and so is what is written.
		for i := range 10_000 {
			a.refuse(auditLocate, fmt.Sprint("peer-", i), why)
		}
		if n := len(a.mu.counts); n > auditKeys+2*len(auditEvents) {
			t.Errorf("%d counts are kept", n)
		}
		if n := len(readAudit(t, path)); n > 14+auditKeys+auditRefusals {
			t.Errorf("%d lines of ten thousand peers", n)
		}
		wantSamples(t, samples(t, reg), map[string]float64{`kvferry_audit_refusals_total{reason="POLICY_DENIED"}`: 15_002})
		if err := a.close(); err != nil {
			t.Error(err)
		}
		a.grant(auditOffer, "late") // nothing falls over
	})
}

// The file can be moved away: it is opened anew on demand. One that can't be written is told of once, and its lines are in the log.
func TestAuditFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	a, _, _ := newTestAuditor(t, path)
	a.grant(auditStart, "self")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	a.grant(auditStart, "self")
	if err := a.reopen(); err != nil {
		t.Fatal(err)
	}
	a.grant(auditStart, "self")
	if was, is := len(readAudit(t, path+".1")), len(readAudit(t, path)); was != 2 || is != 1 {
		t.Errorf("%d lines in the old file, %d in the new one, want 2 and 1", was, is)
	}
	if err := errors.Join(os.Rename(path, path+".2"), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := a.reopen(); err == nil || !strings.Contains(err.Error(), "audit_log") {
		t.Errorf("a folder is opened: %v", err)
	}
	a.grant(auditStart, "self")
	if n := len(readAudit(t, path+".2")); n != 2 {
		t.Errorf("%d lines in the file that was open, want 2: what can't be opened loses none", n)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := a.reopen(); err != nil {
		t.Fatal(err)
	}
	a.grant(auditStart, "self")
	if n := len(readAudit(t, path)); n != 1 {
		t.Errorf("%d lines in the new file, want 1", n)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
	full, reg, log := newTestAuditor(t, "/dev/full")
	for range 3 {
		full.grant(auditStart, "self")
	}
	if got := log.String(); strings.Count(got, "audit_log can't be written") != 1 || strings.Count(got, `"audit":true`) != 3 {
		t.Errorf("log:\n%s", got)
	}
	wantSamples(t, samples(t, reg), map[string]float64{"kvferry_audit_lost_total": 3})
	_ = full.close()
	if _, err := openAudit(filepath.Join(path, "x"), slog.Default()); err == nil || !strings.Contains(err.Error(), "audit_log") {
		t.Errorf("a file that can't be opened: %v", err)
	}
}

// Lines from many goroutines are whole.
func TestAuditConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	a, _, _ := newTestAuditor(t, path)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				a.grant(auditOffer, fmt.Sprint(i), slog.Int("n", i))
				a.sweep(time.Now())
			}
		})
	}
	wg.Wait()
	if n := len(readAudit(t, path)); n != 400 {
		t.Errorf("%d lines, want 400", n)
	}
	_ = a.close()
}
