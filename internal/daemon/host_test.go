package daemon

import (
	"runtime"
	"testing"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func TestCPUModel(t *testing.T) {
	for in, want := range map[string]string{
		"processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Another\n": "Some CPU @ 2 GHz",
		"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n":                              "implementer 0x41 part 0xd40",
		"CPU part: 0xd40": "", "": "", "no colon": "",
	} {
		if got := cpuModel(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// A status says on what machine the daemon runs, so that measurements with another machine in them are not taken for alike.
func TestStatusNamesTheMachine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a")
		st, err := f.nodes["a"].region.Status(t.Context(), &pb.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		h := st.GetHost()
		if h.GetOs() != runtime.GOOS || h.GetArch() != runtime.GOARCH || h.GetCores() != int64(runtime.NumCPU()) {
			t.Errorf("host %v", h)
		}
		if runtime.GOOS == "linux" && h.GetKernel() == "" {
			t.Error("no kernel")
		}
	})
}
