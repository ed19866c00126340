package daemon

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvferry/kvferry/internal/engineload"
	"github.com/kvferry/kvferry/nvml"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// samples is a registry's content by name{label="value",...}; histograms are _sum and _count.
func samples(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatalf("gather: %v", err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			tail := ""
			if len(labels) > 0 {
				tail = "{" + strings.Join(labels, ",") + "}"
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				out[f.GetName()+tail] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				out[f.GetName()+tail] = m.GetGauge().GetValue()
			default:
				out[f.GetName()+"_sum"+tail], out[f.GetName()+"_count"+tail] = m.GetHistogram().GetSampleSum(), float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}

func (n *node) samples() map[string]float64 {
	n.f.t.Helper()
	return samples(n.f.t, n.d.registry)
}

// want holds samples to values, to the number; NaN means that there must be no such sample.
func wantSamples(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, v := range want {
		switch x, ok := got[name]; {
		case math.IsNaN(v) && ok:
			t.Errorf("%s is %v, want no sample", name, x)
		case !math.IsNaN(v) && (!ok || x != v):
			t.Errorf("%s is %v (present: %v), want %v", name, x, ok, v)
		}
	}
}

// reported is what the metrics of migrations must add up to.
type reported map[string]float64

func (w reported) add(r *pb.MigrationReport, blockBytes int64) {
	mode, st := modeLabel(r.GetMode()), strings.ToLower(strings.TrimPrefix(r.GetState().String(), "MIGRATION_STATE_"))
	labels := fmt.Sprintf(`{mode=%q,state=%q}`, mode, st)
	total := r.GetTotal().AsDuration().Seconds()
	w["kvferry_migration_ended_total"+labels]++
	w["kvferry_migration_duration_seconds_count"+labels]++
	w["kvferry_migration_duration_seconds_sum"+labels] += total
	if r.GetCode() != "" {
		w[fmt.Sprintf("kvferry_migration_failures_total{code=%q}", r.GetCode())]++
	}
	if r.GetTransfer().AsDuration() > 0 {
		w["kvferry_migration_transfer_seconds_count"]++
		w["kvferry_migration_transfer_seconds_sum"] += r.GetTransfer().AsDuration().Seconds()
	}
	w["kvferry_migration_raw_bytes_total"] += float64(r.GetBytes())
	w["kvferry_migration_wire_bytes_total"] += float64(r.GetWireBytes())
	w["kvferry_migration_present_bytes_total"] += float64(r.GetBlocksPresent() * blockBytes)
	w["kvferry_migration_pages_total"] += float64(r.GetPages())
	w["kvferry_migration_retried_pages_total"] += float64(r.GetPagesRetried())
	w["kvferry_migration_moved_blocks_total"] += float64(r.GetBlocksMoved())
	w["kvferry_migration_present_blocks_total"] += float64(r.GetBlocksPresent())
	w["kvferry_migration_computed_blocks_total"] += float64(r.GetBlocksComputed())
	w["kvferry_migration_duplicate_bytes_total"] += float64(r.GetDuplicateBytes())
	w["kvferry_migration_replanned_total"] += 0
	if r.GetReplanned() != "" {
		w["kvferry_migration_replanned_total"]++
	}
	w["kvferry_migration_stale_tokens_total"] += float64(r.GetStaleTailTokens())
	if r.GetBlocksMoved() > 0 && r.GetPredictedSeconds() > 0 && st == "committed" && r.GetDecided() == r.GetMode() {
		labels = fmt.Sprintf(`{mode=%q}`, mode)
		w["kvferry_migration_predicted_seconds_count"+labels]++
		w["kvferry_migration_predicted_seconds_sum"+labels] += r.GetPredictedSeconds()
		w["kvferry_migration_actual_seconds_count"+labels]++
		w["kvferry_migration_actual_seconds_sum"+labels] += actualSeconds(r)
		w["kvferry_migration_prediction_error_ratio"+labels] = actualSeconds(r)/r.GetPredictedSeconds() - 1
		w["kvferry_migration_actual_over_predicted_ratio_count"+labels]++
		w["kvferry_migration_actual_over_predicted_ratio_sum"+labels] += actualSeconds(r) / r.GetPredictedSeconds()
	}
}

// After migrations between two daemons, every metric equals what the migrations reported, to the number.
func TestMetricsEqualReports(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		block := r.eb.reg.GetBlockBytes()
		want, back := reported{}, reported{}
		var spent float64
		end := func(n *node, w reported, req *pb.MigrateRequest, st pb.MigrationState) *pb.MigrationReport {
			t.Helper()
			rep := n.mustMigrate(req, st)
			w.add(rep, block)
			if n == r.b {
				spent += rep.GetTotal().AsDuration().Seconds()
			}
			return rep
		}
		keys := r.ea.session("fetched", 40)
		r.eb.write("", keys[:8])
		first := end(r.b, want, request("fetched"), committed)
		r.ea.session("chosen", 150) // above a mebibyte, which measures the goodput
		end(r.b, want, auto("chosen"), committed)
		r.ea.session("prefilled", 3)
		req := request("prefilled")
		req.Mode = pb.Mode_MODE_RECOMPUTE
		end(r.b, want, req, recompute)
		r.ea.session("left", 3)
		req = request("left")
		req.Mode = pb.Mode_MODE_REDIRECT
		end(r.b, want, req, redirect)
		end(r.b, want, request("nobody knows it"), failed)
		end(r.b, want, request("fetched"), committed) // it is here
		end(r.a, back, request("fetched"), committed)
		r.settle()

		if first.GetBlocksMoved() != 32 || first.GetBlocksPresent() != 8 || first.GetPredictedSeconds() <= 0 || first.GetWireBytes() <= first.GetBytes() {
			t.Errorf("report %v", first)
		}
		gotB, gotA := r.b.samples(), r.a.samples()
		wantSamples(t, gotB, want)
		wantSamples(t, gotA, back)
		for name, n := range gotB { // and nothing else counted
			if _, ok := want[name]; !ok && strings.HasPrefix(name, "kvferry_migration_") && n != 0 && !strings.HasPrefix(name, "kvferry_migration_step_") {
				t.Errorf("%s is %v, and no report says so", name, n)
			}
		}
		raw := want["kvferry_migration_raw_bytes_total"]
		if raw != 182*float64(block) {
			t.Errorf("%v bytes moved, want those of 32 + 150 blocks", raw)
		}
		wantSamples(t, gotB, map[string]float64{
			"kvferry_transfer_received_bytes_total": raw, "kvferry_transfer_checksum_mismatches_total": 0, "kvferry_transfer_page_retries_total": 0,
			`kvferry_transfer_transfers_total{op="read",state="done"}`: 2, "kvferry_migration_active_migrations": 0,
			`kvferry_arena_restored_blocks_total{engine="e"}`: 0, `kvferry_arena_restore_dropped_blocks_total{engine="e"}`: 0,
			`kvferry_arena_checksum_failures_total{engine="e"}`: 0, `kvferry_arena_evictions_total{engine="e"}`: 0, `kvferry_arena_leases{engine="e"}`: 0,
			`kvferry_arena_slots{engine="e",state="committed"}`: 190, `kvferry_arena_slots{engine="e",state="free"}`: 322,
			`kvferry_arena_slots{engine="e",state="reserved"}`: 0, `kvferry_arena_slots{engine="e",state="draining"}`: 0,
		})
		wantSamples(t, gotA, map[string]float64{
			`kvferry_egress_served_bytes_total{peer="b"}`: raw, `kvferry_egress_served_bytes_total{peer="other"}`: 0, "kvferry_transfer_sent_bytes_total": raw,
			`kvferry_egress_offers{peer="b"}`: 0, `kvferry_egress_backlog_bytes{peer="b"}`: 0, `kvferry_egress_wait_seconds_count{class="interactive"}`: 2, `kvferry_egress_wait_seconds_sum{class="interactive"}`: 0, `kvferry_egress_wait_seconds_count{class="background"}`: 0, "kvferry_egress_oldest_offer_seconds": 0,
		})
		// The steps take all of a migration's time: in virtual time nothing else does.
		var steps float64
		for name, v := range gotB {
			if strings.HasPrefix(name, "kvferry_migration_step_seconds_sum") {
				steps += v
			}
		}
		if math.Abs(steps-spent) > 1e-9 {
			t.Errorf("steps take %v s, migrations %v s", steps, spent)
		}
		r.wantLinkMetrics(gotB)
	})
}

// wantLinkMetrics holds a node's link metrics to what ListLinks says.
func (r *rig) wantLinkMetrics(got map[string]float64) {
	r.t.Helper()
	resp, err := r.b.region.ListLinks(context.Background(), &pb.ListLinksRequest{})
	if err != nil || len(resp.GetLinks()) != 1 {
		r.t.Fatalf("links %v, %v", resp, err)
	}
	l := resp.GetLinks()[0]
	wantSamples(r.t, got, map[string]float64{
		`kvferry_link_up{peer="a"}`: 1, `kvferry_link_stripes{peer="a"}`: float64(l.GetStripes()),
		`kvferry_link_rtt_seconds{peer="a"}`:                                                       l.GetRttSmoothed().AsDuration().Seconds(),
		`kvferry_link_rtt_min_seconds{peer="a"}`:                                                   l.GetRttMin().AsDuration().Seconds(),
		`kvferry_link_goodput_bytes_per_second{peer="a"}`:                                          l.GetGoodputBps() / 8,
		`kvferry_link_goodput_age_seconds{peer="a"}`:                                               l.GetAge().AsDuration().Seconds(),
		`kvferry_link_goodput_spread_bytes_per_second{peer="a"}`:                                   l.GetGoodput().GetSpread() / 8,
		`kvferry_link_prior_goodput_bytes_per_second{peer="a"}`:                                    1e9 / 8,
		`kvferry_link_received_bytes_total{peer="a"}`:                                              float64(l.GetBytesReceived()),
		`kvferry_link_sent_bytes_total{peer="a"}`:                                                  float64(l.GetBytesSent()),
		`kvferry_link_lost_packets_total{peer="a"}`:                                                float64(l.GetPacketsLost()),
		`kvferry_link_dial_failures_total{peer="a"}`:                                               0,
		`kvferry_link_up{peer="other"}`:                                                            math.NaN(),
		`kvferry_build_info{goversion="` + goVersion() + `",node="b",region="r-b",version="test"}`: 1,
	})
	if got[`kvferry_link_received_bytes_total{peer="a"}`] < got["kvferry_migration_wire_bytes_total"] {
		r.t.Error("the link received less than the migrations")
	}
	for name, e := range map[string]*pb.Estimate{"capacity_bytes_per_second": l.GetCapacity(), "loss_ratio": l.GetLoss(), "ramp_seconds": l.GetRamp()} {
		scale, want := 1.0, math.NaN() // absent until known
		if strings.HasPrefix(name, "capacity") {
			scale = 8
		}
		if e.GetBasis() != pb.EstimateBasis_ESTIMATE_BASIS_UNKNOWN {
			want = e.GetValue() / scale
		}
		wantSamples(r.t, got, map[string]float64{fmt.Sprintf(`kvferry_link_%s{peer="a"}`, name): want})
	}
	if !l.GetMeasured() || l.GetRttMin().AsDuration() < fast.RTT {
		r.t.Errorf("link %v", l)
	}
}

// Prefix hits are told apart by where the block came from, and a reused slot forgets it.
func TestPrefixMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		ctx := context.Background()
		keys := r.ea.session("s", 40)
		r.eb.write("", keys[:8])
		lookup := func(keys [][]byte) {
			t.Helper()
			if _, err := r.b.engine.LookupBlocks(ctx, &pb.LookupBlocksRequest{EngineId: "e", Keys: keys}); err != nil {
				t.Fatal(err)
			}
		}
		hits := func(call string) (n [4]float64) { // local, migrated, landing, absent
			got := r.b.samples()
			for i, result := range prefixResults {
				n[i] = got[fmt.Sprintf(`kvferry_prefix_blocks_total{call=%q,engine="e",region="r-b",result=%q}`, call, result)]
			}
			return n
		}
		wantHits := func(call string, want [4]float64) {
			t.Helper()
			if got := hits(call); got != want {
				t.Errorf("%s finds %v, want %v", call, got, want)
			}
		}
		wantHits("lookup", [4]float64{})
		lookup(keys)
		wantHits("lookup", [4]float64{8, 0, 0, 32})
		m := r.b.begin(request("s"))
		m.landed(8192)
		before := hits("lookup")
		lookup(keys)
		during := hits("lookup")
		if during[2] == 0 || during[0]+during[1]+during[2]+during[3]-before[0]-before[1]-before[2]-before[3] != 40 {
			t.Errorf("in the middle of a transfer: %v after %v", during, before)
		}
		m.end()
		before = hits("lookup")
		lookup(keys)
		wantHits("lookup", [4]float64{before[0] + 8, before[1] + 32, before[2], before[3]})

		acquire := func(prefix bool, keys [][]byte) {
			t.Helper()
			resp, err := r.b.engine.AcquireBlocks(ctx, &pb.AcquireBlocksRequest{EngineId: "e", Keys: keys, Prefix: prefix})
			if prefix && err != nil {
				t.Fatal(err)
			}
			if id := resp.GetLeaseId(); id != 0 {
				if _, err := r.b.engine.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: "e", LeaseIds: []uint64{id}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		more := slices.Concat(keys, chain("other", 5))
		acquire(true, more)
		wantHits("acquire", [4]float64{8, 32, 0, 5})
		acquire(false, more) // all or nothing: nothing
		wantHits("acquire", [4]float64{8, 32, 0, 50})

		fresh := chain("fresh", 512) // every slot is used again
		r.eb.write("", fresh)
		before = hits("lookup")
		lookup(fresh)
		wantHits("lookup", [4]float64{before[0] + 512, before[1], before[2], before[3]})
		if got := r.b.samples()[`kvferry_arena_evictions_total{engine="e"}`]; got != 40 {
			t.Errorf("%v evictions, want 40", got)
		}
		r.settle()
	})
}

// A puller that the configuration does not list counts as "other"; what ended links counted stays.
func TestLinkMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, func(name string, c *Config, _ *Parts) {
			if name == "a" {
				c.Peers = c.Peers[:1] // b, not c
			}
		}, "a", "b", "c")
		ea := f.nodes["a"].register("e", testLayout(), 4<<20)
		for _, name := range []string{"b", "c"} {
			n := f.nodes[name]
			n.register("e", testLayout(), 4<<20)
			ea.session("for "+name, 10)
			req := request("for " + name)
			req.SourceHint = "a"
			n.mustMigrate(req, committed)
		}
		f.settle()
		a := f.nodes["a"]
		before := a.samples()
		wantSamples(t, before, map[string]float64{
			`kvferry_egress_served_bytes_total{peer="b"}`: 81920, `kvferry_egress_served_bytes_total{peer="other"}`: 81920, `kvferry_link_up{peer="b"}`: 1,
			`kvferry_link_up{peer="c"}`: math.NaN(), `kvferry_link_sent_bytes_total{peer="c"}`: math.NaN(), `kvferry_link_goodput_bytes_per_second{peer="b"}`: math.NaN(),
		})
		counters := []string{"sent_bytes", "received_bytes", "sent_packets", "received_packets", "lost_packets"}
		for _, link := range a.d.agent.Links() {
			_ = link.Close(transfer.CodeOK)
		}
		time.Sleep(2 * time.Second)
		after := a.samples()
		for _, peer := range []string{"b", "other"} {
			for _, c := range counters {
				name := fmt.Sprintf("kvferry_link_%s_total{peer=%q}", c, peer)
				if before[name] == 0 && c != "lost_packets" || after[name] < before[name] {
					t.Errorf("%s was %v, is %v after its link has ended", name, before[name], after[name])
				}
			}
		}
		wantSamples(t, after, map[string]float64{`kvferry_link_up{peer="b"}`: 0, `kvferry_link_rtt_seconds{peer="b"}`: math.NaN()})

		// A peer that is gone is counted at each attempt.
		f.nodes["b"].stop()
		ea.session("more", 1)
		if _, _, err := a.migrate(&pb.MigrateRequest{RequestId: "x", Session: &pb.SessionRef{SessionId: "nobody's"}, SourceHint: "b"}); err != nil {
			t.Fatal(err)
		}
		got := a.samples()
		if got[`kvferry_link_dial_failures_total{peer="b"}`] < 1 || got[`kvferry_migration_failures_total{code="PEER_UNREACHABLE"}`] != 1 {
			t.Errorf("failures %v, %v", got[`kvferry_link_dial_failures_total{peer="b"}`], got[`kvferry_migration_failures_total{code="PEER_UNREACHABLE"}`])
		}
		f.settle()
	})
}

// GPUs and engines: what is read is shown, what is not has no sample.
func TestLoadMetrics(t *testing.T) {
	good := engineload.Load{
		Running: known(0), Waiting: known(2), KVUsage: known(0.5), PrefixQueries: known(100), PrefixHits: known(40), Restarts: 1,
		Prefill: engineload.Prefill{SecondsPerToken: known(1e-4)},
	}
	cfg := Config{Engines: []EngineConfig{{ID: "up"}, {ID: "down"}, {ID: "unread"}}}
	l := &load{maxAge: 8 * time.Second, engines: []engineSource{
		{cfg.Engines[0], &fakeLoad{load: good}}, {cfg.Engines[1], &fakeLoad{err: engineload.ErrNoScrape}}, {cfg: cfg.Engines[2]},
	}}
	gather := func(snap nvml.Snapshot) map[string]float64 {
		l.gpus = &fakeGPUs{snap: snap}
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(&gpuCollector{l}, &engineCollector{l})
		return samples(t, reg)
	}
	lost := nvml.GPU{Index: 1, UUID: "GPU-b", State: nvml.StateLost}
	got := gather(snapshot(gpu(0, throttled), lost))
	nan := math.NaN()
	wantSamples(t, got, map[string]float64{
		`kvferry_gpu_reader_state{state="available"}`: 1, `kvferry_gpu_reader_state{state="hung"}`: 0,
		`kvferry_gpu_state{gpu="0",state="available",uuid="GPU-a"}`: 1, `kvferry_gpu_state{gpu="0",state="lost",uuid="GPU-a"}`: 0,
		`kvferry_gpu_state{gpu="1",state="lost",uuid="GPU-b"}`: 1, `kvferry_gpu_utilization_ratio{gpu="0",uuid="GPU-a"}`: 0.97,
		`kvferry_gpu_utilization_ratio{gpu="1",uuid="GPU-b"}`: nan, `kvferry_gpu_clock_scale_ratio{gpu="0",uuid="GPU-a"}`: 0.5,
		`kvferry_gpu_memory_free_bytes{gpu="0",uuid="GPU-a"}`: 1 << 30, `kvferry_gpu_memory_used_bytes{gpu="0",uuid="GPU-a"}`: nan,
		`kvferry_gpu_throttling{gpu="0",reason="software_power",uuid="GPU-a"}`: 1, `kvferry_gpu_throttling{gpu="0",reason="idle",uuid="GPU-a"}`: 0,
		`kvferry_engine_up{engine="up"}`: 1, `kvferry_engine_up{engine="down"}`: 0, `kvferry_engine_up{engine="unread"}`: nan,
		`kvferry_engine_running_requests{engine="up"}`: 0, `kvferry_engine_waiting_requests{engine="up"}`: 2, `kvferry_engine_waiting_requests{engine="down"}`: nan,
		`kvferry_engine_prefix_hit_tokens_total{engine="up"}`: 40, `kvferry_engine_external_hit_tokens_total{engine="up"}`: nan,
		`kvferry_engine_prefill_seconds_per_token{engine="up"}`: 1e-4, `kvferry_engine_restarts_total{engine="up"}`: 1,
	})
	stale := snapshot(gpu(0, nil))
	stale.Age = time.Minute
	wantSamples(t, gather(stale), map[string]float64{`kvferry_gpu_utilization_ratio{gpu="0",uuid="GPU-a"}`: nan})
	wantSamples(t, gather(nvml.Snapshot{}), map[string]float64{`kvferry_gpu_reader_state{state="unavailable"}`: 1})
}

// A code of another release does not make a series of its own.
func TestFailureCodesAreBounded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := newMigrationMetrics(maker{reg})
	before := len(samples(t, reg))
	for i := range 100 {
		m.count(&pb.MigrationReport{Code: fmt.Sprintf("NEW_%d", i), State: failed}, 0)
	}
	got := samples(t, reg)
	wantSamples(t, got, map[string]float64{`kvferry_migration_failures_total{code="OTHER"}`: 100})
	if len(got) > before+2 { // one histogram
		t.Errorf("%d series more", len(got)-before)
	}
}
