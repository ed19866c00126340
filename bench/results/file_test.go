package results

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

type testParams struct {
	RTT   time.Duration `json:"rtt"`
	Seed  uint64        `json:"seed"`
	Model string        `json:"model"`
}

type testBody struct {
	GoodputBPS float64 `json:"goodput_bps"`
	Points     []int   `json:"points,omitempty"`
}

func sample(t testing.TB) *File {
	t.Helper()
	f := New(KindGoodput, []string{"kvferry", "bench", "goodput"}, testParams{70 * time.Millisecond, math.MaxUint64, "a<b>"})
	f.Add(Metric{Name: "goodput", Unit: "bps", Better: Higher, Samples: []float64{3, 1, 2, 5, 4, 6, 7}})
	f.Add(Metric{Name: "crossover", Unit: "tokens", Better: Neither, Median: 700, Low: 650, High: 760})
	if err := f.SetBody(testBody{4.5e8, []int{1, 2}}); err != nil {
		t.Fatal(err)
	}
	f.Warn("load %d", 3)
	f.Warn("load %d", 3)
	f.Finish(true)
	return f
}

var ignoreErr = cmpopts.IgnoreUnexported(File{})

func TestSaveLoad(t *testing.T) {
	f := sample(t)
	path := filepath.Join(t.TempDir(), "r.json")
	for range 2 { // the second time over the first
		if err := f.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(f, got, ignoreErr); d != "" {
		t.Errorf("loaded, it differs (-saved +loaded):\n%s", d)
	}
	var body testBody
	if err := got.DecodeBody(&body); err != nil || body.GoodputBPS != 4.5e8 {
		t.Errorf("body is %+v (%v)", body, err)
	}
	if got.Params["seed"] != json.Number("18446744073709551615") {
		t.Errorf("seed is %v, want all digits", got.Params["seed"])
	}
	if want := []string{"load 3"}; !cmp.Equal(got.Warnings, want) {
		t.Errorf("warnings are %q, want %q", got.Warnings, want)
	}
	m, ok := got.Metric("goodput")
	if !ok || m.Median != 4 || m.Low != 1 || m.High != 7 {
		t.Errorf("metric is %+v, want median 4 in 1 to 7", m)
	}
	if _, ok := got.Metric("other"); ok {
		t.Error("it has a metric that was not added")
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("mode is %v (%v), want 0644", st.Mode(), err)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("%d files are left (%v), want one", len(files), err)
	}
}

func TestFlat(t *testing.T) {
	for name, body := range map[string]any{"body": testBody{GoodputBPS: 1}, "empty": struct{}{}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			f := sample(t)
			f.Body = nil
			if body != nil {
				if err := f.SetBody(body); err != nil {
					t.Fatal(err)
				}
			}
			var b bytes.Buffer
			if err := f.WriteFlat(&b); err != nil {
				t.Fatal(err)
			}
			var top map[string]any
			if err := json.Unmarshal(b.Bytes(), &top); err != nil {
				t.Fatal(err)
			}
			if name == "body" && top["goodput_bps"] != 1.0 {
				t.Errorf("the top has %v, want the body's fields", top)
			}
			got, err := Parse(b.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if name == "empty" {
				f.Body = nil // the same as none, once flat
			}
			if d := cmp.Diff(f, got, ignoreErr); d != "" {
				t.Errorf("parsed, it differs (-written +parsed):\n%s", d)
			}
		})
	}
}

func TestFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(KindQueue, nil, nil)
		time.Sleep(90 * time.Second)
		f.Finish(false)
		if f.Seconds != 90 || f.Interrupted {
			t.Errorf("seconds %v, interrupted %v, want 90 and false", f.Seconds, f.Interrupted)
		}
	})
}

func TestCommit(t *testing.T) {
	set := func(kv ...string) *debug.BuildInfo {
		var b debug.BuildInfo
		for i := 0; i < len(kv); i += 2 {
			b.Settings = append(b.Settings, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
		}
		return &b
	}
	for want, b := range map[string]*debug.BuildInfo{
		"": set("vcs.modified", "true"), "abc": set("vcs.revision", "abc", "vcs.modified", "false"), "abc+dirty": set("vcs.modified", "true", "vcs.revision", "abc"),
	} {
		if got := commitOf(b); got != want {
			t.Errorf("commit is %q, want %q", got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*File)
		want   string
	}{
		{"schema", func(f *File) { f.Schema = "kvferry.bench/2" }, `schema is "kvferry.bench/2", want "kvferry.bench/1"`},
		{"kind", func(f *File) { f.Kind = "other" }, `kind is "other", want one of codec, compare`},
		{"started", func(f *File) { f.Started = time.Time{} }, "started is"},
		{"seconds", func(f *File) { f.Seconds = math.NaN() }, "seconds is NaN"},
		{"machine", func(f *File) { f.Machine.Cores = -1 }, "machine.cores is -1"},
		{"remote machine", func(f *File) { f.Remote = map[string]Machine{"destination": {Cores: -1}} }, "remote destination: machine.cores is -1"},
		{"remote role", func(f *File) { f.Remote = map[string]Machine{"a b": {}} }, `remote has "a b"`},
		{"remote machines", func(f *File) {
			f.Remote = map[string]Machine{}
			for i := range 17 {
				f.Remote[strconv.Itoa(i)] = Machine{}
			}
		}, "remote has 17 machines, want at most 16"},
		{"name", func(f *File) { f.Metrics[0].Name = "a b" }, `name is "a b"`},
		{"twice", func(f *File) { f.Metrics[1].Name = "goodput" }, `"goodput" is there twice`},
		{"unit", func(f *File) { f.Metrics[0].Unit = "" }, "unit is"},
		{"direction", func(f *File) { f.Metrics[0].Better = "up" }, `better is "up", want higher, lower or neither`},
		{"not finite", func(f *File) { f.Metrics[0].High = math.Inf(1) }, "must be finite"},
		{"order", func(f *File) { f.Metrics[1].Low = 800 }, "low 800, median 700 and high 760 must ascend"},
		{"samples", func(f *File) { f.Metrics[0].Samples[2] = math.NaN() }, "samples[2] is NaN"},
		{"not the median", func(f *File) { f.Metrics[0].Median = 5 }, "median is 5, the samples' is 4"},
		{"body", func(f *File) { f.Body = json.RawMessage("[1]") }, "body: it is no JSON object"},
		{"broken body", func(f *File) { f.Body = json.RawMessage("{") }, "body: decode JSON"},
		{"many", func(f *File) { f.Metrics = make([]Metric, MaxMetrics+1) }, "there are 10001, at most 10000"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := sample(t)
			test.change(f)
			path := filepath.Join(t.TempDir(), "r.json")
			err := f.Save(path)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("saving says %v, want %q", err, test.want)
			}
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a file is there (%v)", err)
			}
		})
	}
	f := sample(t)
	f.Schema, f.Kind = "", ""
	if err := f.Validate(); err == nil || !strings.Contains(err.Error(), "schema") || !strings.Contains(err.Error(), "kind") {
		t.Errorf("error is %v, want both violations", err)
	}
	for name, params := range map[string]any{"text": "x", "list": []int{1}, "channel": make(chan int), "nan": map[string]float64{"x": math.NaN()}} {
		if err := New(KindGoodput, nil, params).Validate(); err == nil || !strings.Contains(err.Error(), "params") {
			t.Errorf("params %s: %v, want an error", name, err)
		}
	}
	for _, body := range []any{1, []int{1}, map[string]int{"run": 1}, map[string]int{"schema": 1}, make(chan int), nil} {
		if err := f.SetBody(body); err == nil {
			t.Errorf("body %v is no error", body)
		}
	}
	f.Body = nil
	if err := f.DecodeBody(&struct{}{}); err == nil {
		t.Error("decoding an absent body is no error")
	}
}

func TestSaveErrors(t *testing.T) {
	f := sample(t)
	dir := t.TempDir()
	if err := f.Save(filepath.Join(dir, "none", "r.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into no folder: %v, want ErrNotExist", err)
	}
	if err := f.Save(dir); err == nil {
		t.Error("over a folder: no error")
	}
	if files, err := filepath.Glob(filepath.Join(filepath.Dir(dir), ".result-*")); err != nil || len(files) != 0 {
		t.Errorf("left behind: %q (%v)", files, err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("loading a folder: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("loading nothing: %v, want ErrNotExist", err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, MaxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(big); err == nil || !strings.Contains(err.Error(), "more than 67108864 bytes") {
		t.Errorf("loading too much: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	good, err := sample(t).encode()
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, with string) []byte {
		if !bytes.Contains(good, []byte(old)) {
			t.Fatalf("%q is not in the result", old)
		}
		return bytes.Replace(good, []byte(old), []byte(with), 1)
	}
	tests := []struct {
		name string
		b    []byte
		want string
	}{
		{"nothing", nil, "decode JSON"},
		{"list", []byte("[]"), "no JSON object"},
		{"other object", []byte(`{"a":1}`), `neither "schema" nor "run"`},
		{"truncated", good[:len(good)/2], "decode JSON"},
		{"trailing", append(bytes.Clone(good), "{}"...), "decode JSON"},
		{"unknown field", replace(`"kind"`, `"sort": 1, "kind"`), "unknown field"},
		{"unknown field of a metric", replace(`"unit"`, `"sort": 1, "unit"`), "unknown field"},
		{"unknown field of the machine", replace(`"os"`, `"sort": 1, "os"`), "unknown field"},
		{"another case", replace(`"kind"`, `"Kind"`), `unknown field "Kind"`},
		{"another case below", replace(`"unit"`, `"UNIT"`), "unknown field"},
		{"another letter", replace(`"kind"`, "\"\u212aind\""), "unknown field"},
		{"twice", replace(`"kind"`, `"kind": "goodput", "kind"`), `"kind" is there twice`},
		{"twice below", replace(`"unit"`, `"unit": "bps", "unit"`), `"unit" is there twice`},
		{"twice in params", replace(`"rtt"`, `"rtt": 1, "rtt"`), `"rtt" is there twice`},
		{"twice in the body", replace(`"goodput_bps"`, `"goodput_bps": 1, "goodput_bps"`), `"goodput_bps" is there twice`},
		{"other schema", replace("kvferry.bench/1", "kvferry.bench/2"), "another version"},
		{"wrong type", replace(`"metrics": [`, `"metrics": {}, "x": [`), "decode JSON"},
		{"null body", replace(`"body": {`, `"body": null, "x": {`), ""},
		{"run is a list", []byte(`{"run":[]}`), "no object"},
		{"body in run", []byte(`{"run":{"schema":"kvferry.bench/1","body":{}}}`), "body of its own"},
		{"large number", replace(`"seconds"`, `"seconds": 1e999, "x"`), "decode JSON"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Parse(test.b); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
		})
	}
}

// FuzzParse: what is accepted is the same result when it is saved in either form and read again.
func FuzzParse(f *testing.F) {
	nested, err := sample(f).encode()
	if err != nil {
		f.Fatal(err)
	}
	var flat bytes.Buffer
	if err := sample(f).WriteFlat(&flat); err != nil {
		f.Fatal(err)
	}
	f.Add(nested)
	f.Add(flat.Bytes())
	f.Add([]byte(`{"schema":"kvferry.bench/1","kind":"queue","started":"2026-01-02T03:04:05Z","body":{"a":"<\u2028","b":[1e3,null]},"params":{"x":1E5}}`))
	f.Add([]byte(`{"run":{"schema":"kvferry.bench/1","kind":"wan","started":"2026-01-02T03:04:05+01:00","metrics":[{"name":"a","unit":"s","better":"lower","samples":[],"median":1,"low":0,"high":2}]},"a":{}}`))
	f.Add([]byte("{\"schema\":\"kvferry.bench/1\",\"kind\":\"queue\",\"started\":\"2026-01-02T03:04:05Z\",\"body\":{\"a\":\"u2028\",\"\x80\":[1e3,null]},\"params\":{\"x\":1E5}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		one, err := Parse(b)
		if err != nil {
			return
		}
		saved, err := one.encode()
		if err != nil {
			t.Fatalf("what was accepted cannot be saved: %v", err)
		}
		var flat bytes.Buffer
		if err := one.WriteFlat(&flat); err != nil {
			t.Fatalf("what was accepted cannot be written: %v", err)
		}
		for _, b := range [][]byte{saved, flat.Bytes()} {
			two, err := Parse(b)
			if err != nil {
				t.Fatalf("what was written is refused: %v\n%s", err, b)
			}
			if string(one.Body) == "{}" {
				two.Body = one.Body
			}
			again, err := two.encode()
			if err != nil || !bytes.Equal(saved, again) {
				t.Fatalf("read again, it differs (%v):\n%s\n%s", err, saved, again)
			}
		}
	})
}
