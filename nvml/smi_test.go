//go:build linux && cgo && nvml

package nvml

import (
	"encoding/csv"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The readings beside those of nvidia-smi, on a machine with a GPU: go test -tags nvml ./nvml/
//
// Identity and limits must be equal. What moves is read before and after nvidia-smi and must not be farther from its value
// than the tolerance beyond that range.
func TestAgainstNvidiaSMI(t *testing.T) {
	smi, err := exec.LookPath("nvidia-smi")
	if err != nil {
		t.Skip("no nvidia-smi: this machine has no NVIDIA driver")
	}
	sampler, err := OpenWith(Config{Period: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sampler.Close(); err != nil {
			t.Error(err)
		}
	})
	before := until(t, sampler, "available", available)
	rows := query(t, smi)
	after := until(t, sampler, "sampled again", func(s Snapshot) bool { return available(s) && s.Taken.After(before.Taken) })
	t.Logf("%v; library %s", after, after.Library)
	for _, g := range after.GPUs {
		t.Logf("%+v", g)
	}
	whole := func(s Snapshot) (gpus []GPU) {
		for _, g := range s.GPUs {
			if !g.IsInstance() {
				gpus = append(gpus, g)
			}
		}
		return gpus
	}
	first, second := whole(before), whole(after)
	if len(second) != len(rows) || len(first) != len(rows) {
		t.Fatalf("%d GPUs, nvidia-smi says %d", len(second), len(rows))
	}
	for i, row := range rows {
		a, b := first[i], second[i]
		for _, tc := range []struct{ got, want string }{
			{after.Driver, row["driver_version"]}, {b.UUID, row["uuid"]}, {b.Name, row["name"]}, {b.BusID, row["pci.bus_id"]},
		} {
			if tc.got != tc.want {
				t.Errorf("GPU %d: %q, nvidia-smi says %q", i, tc.got, tc.want)
			}
		}
		for _, tc := range []struct {
			field     string
			a, b      Reading[float64]
			unit      float64 // of nvidia-smi's value
			tolerance float64 // in nvidia-smi's unit; half of its last digit at least
		}{
			{"memory.total", float(a.Memory.Total), float(b.Memory.Total), 1 << 20, 1},
			{"memory.reserved", float(a.Memory.Reserved), float(b.Memory.Reserved), 1 << 20, 8},
			{"memory.used", float(a.Memory.Used), float(b.Memory.Used), 1 << 20, 64},
			{"memory.free", float(a.Memory.Free), float(b.Memory.Free), 1 << 20, 64},
			{"utilization.gpu", a.Utilization.GPU, b.Utilization.GPU, 0.01, 30},
			{"utilization.memory", a.Utilization.Memory, b.Utilization.Memory, 0.01, 30},
			{"temperature.gpu", a.Temperature, b.Temperature, 1, 3},
			{"power.draw", a.Power.Draw, b.Power.Draw, 1, 60},
			{"enforced.power.limit", a.Power.Limit, b.Power.Limit, 1, 0.01},
			{"clocks.sm", float(a.Clocks.SM), float(b.Clocks.SM), 1e6, 700},
			{"clocks.mem", float(a.Clocks.Memory), float(b.Clocks.Memory), 1e6, 100},
			{"clocks.max.sm", float(a.Clocks.SMMax), float(b.Clocks.SMMax), 1e6, 0},
			{"clocks.max.mem", float(a.Clocks.MemoryMax), float(b.Clocks.MemoryMax), 1e6, 0},
			{"ecc.errors.corrected.volatile.total", float(a.Health.Corrected), float(b.Health.Corrected), 1, 0},
			{"ecc.errors.uncorrected.volatile.total", float(a.Health.Uncorrected), float(b.Health.Uncorrected), 1, 0},
		} {
			text, _, _ := strings.Cut(row[tc.field], " ")
			want, err := strconv.ParseFloat(text, 64)
			x, okA := tc.a.Get()
			y, okB := tc.b.Get()
			if err != nil { // "[N/A]", "[Not Supported]"
				if okA && okB {
					t.Logf("GPU %d: %s is %q for nvidia-smi and %v here", i, tc.field, row[tc.field], y/tc.unit)
				}
				continue
			}
			if !okA || !okB {
				t.Errorf("GPU %d: %s is %v for nvidia-smi and here %v, %v", i, tc.field, want, tc.a, tc.b)
				continue
			}
			low, high := min(x, y)/tc.unit-tc.tolerance, max(x, y)/tc.unit+tc.tolerance
			if want < low-1e-6 || want > high+1e-6 || math.IsNaN(want) {
				t.Errorf("GPU %d: %s is %v for nvidia-smi and %v, %v here", i, tc.field, want, x/tc.unit, y/tc.unit)
			}
		}
		if mode, ok := b.MIG.Enabled.Get(); ok && mode != (row["mig.mode.current"] == "Enabled") {
			t.Errorf("GPU %d: MIG is %v, nvidia-smi says %q", i, mode, row["mig.mode.current"])
		}
		if throttle, ok := b.Clocks.Throttling.Get(); ok {
			mask, err := strconv.ParseUint(strings.TrimPrefix(row["clocks_event_reasons.active"], "0x"), 16, 64)
			if other, _ := a.Clocks.Throttling.Get(); err == nil && throttle == other && throttleOf(mask) != throttle {
				t.Errorf("GPU %d: throttled by %v, nvidia-smi says %v", i, throttle, throttleOf(mask))
			}
		}
	}
}

func float(r Reading[uint64]) Reading[float64] {
	v, ok := r.Get()
	if !ok {
		return missingAs[float64](r)
	}
	return Available(float64(v))
}

// query returns nvidia-smi's value of each field, by GPU.
func query(t *testing.T, smi string) []map[string]string {
	t.Helper()
	fields := []string{
		"driver_version", "uuid", "name", "pci.bus_id", "memory.total", "memory.reserved", "memory.used", "memory.free",
		"utilization.gpu", "utilization.memory", "temperature.gpu", "power.draw", "enforced.power.limit", "clocks.sm", "clocks.mem",
		"clocks.max.sm", "clocks.max.mem", "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total",
		"mig.mode.current", "clocks_event_reasons.active",
	}
	out, err := exec.CommandContext(t.Context(), smi, "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits").CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi: %v\n%s", err, out)
	}
	r := csv.NewReader(strings.NewReader(string(out)))
	r.TrimLeadingSpace = true
	r.FieldsPerRecord = len(fields)
	lines, err := r.ReadAll()
	if err != nil {
		t.Fatalf("nvidia-smi: %v\n%s", err, out)
	}
	var rows []map[string]string
	for _, line := range lines {
		row := map[string]string{}
		for i, field := range fields {
			row[field] = strings.TrimSpace(line[i])
		}
		rows = append(rows, row)
	}
	return rows
}
