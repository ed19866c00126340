package doctor_test

import (
	"context"
	"fmt"

	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/internal/doctor"
)

func Example() {
	checks := doctor.Checks(doctor.Setup{
		Configured: true, ConfigPath: "kvferryd.yaml",
		Config: daemon.Config{Node: daemon.NodeConfig{ID: "eu-1", Region: "eu"}, Link: daemon.LinkConfig{Stripes: 100}},
	})
	for _, f := range doctor.Run(context.Background(), checks[:1], doctor.Options{}) {
		fmt.Println(f.Name, f.Status)
		fmt.Println(f.Detail)
		fmt.Println("fix:", f.Fix)
	}
	// Output:
	// config fail
	// kvferryd.yaml: config link.stripes = 100: must be 1 to 64, or 0 for as many as the path needs
	// fix: change link.stripes: want 1 to 64, or 0 for as many as the path needs
}
