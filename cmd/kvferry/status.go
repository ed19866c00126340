package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (a *app) newStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Describe the daemon at --addr: node, arenas, leases, work in progress", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, c clients) error {
				s, err := c.region.Status(ctx, &pb.StatusRequest{})
				if err != nil {
					return err
				}
				v := statusView{
					Node: viewNode(s.GetNode()), Version: s.GetVersion(), UptimeSeconds: seconds(s.GetUptime()), GPU: s.GetGpu(),
					Shadow: s.GetShadow(), ActiveMigrations: s.GetActiveMigrations(), Offers: s.GetOffers(), EgressBacklogBytes: s.GetEgressBacklogBytes(),
					Goroutines: s.GetGoroutines(), Certificate: viewCertificate(s.GetCertificate()), Policy: viewPolicy(s.GetPolicy()), Sessions: viewSessions(s.GetSessions()),
					Arenas: make([]arenaView, 0, len(s.GetArenas())),
				}
				for _, ar := range s.GetArenas() {
					v.Arenas = append(v.Arenas, viewArena(ar))
				}
				return a.print(v, v.table)
			})
		},
	}
}

func (v statusView) table(w io.Writer) {
	row(w, "node:", v.Node.text())
	row(w, "version:", v.Version)
	if v.Shadow {
		row(w, "mode:", "shadow: migrations are planned and logged, nothing moves; 'kvferry plans' shows them")
	}
	row(w, "certificate:", v.Certificate.text())
	row(w, "policy:", v.Policy.text())
	row(w, "up:", secondsText(v.UptimeSeconds))
	row(w, "gpu:", dash(v.GPU))
	row(w, "sessions:", v.Sessions.text())
	row(w, "migrations:", fmt.Sprintf("%d active, %d offers out", v.ActiveMigrations, v.Offers))
	row(w, "egress:", bytesText(v.EgressBacklogBytes)+" queued")
	row(w, "goroutines:", v.Goroutines)
	row(w)
	row(w, "ENGINE", "MODEL", "SLOTS", "FREE", "RESERVED", "COMMITTED", "DRAINING", "LEASES", "BLOCK", "PINNED", "NOTE")
	for _, a := range v.Arenas {
		note := a.PinNote
		if a.Broken {
			note = "BROKEN: its file was truncated or removed; the engine gets another when it registers again"
		}
		row(w, a.EngineID, dash(a.ModelID), a.Slots, a.SlotsFree, a.SlotsReserved, a.SlotsCommitted, a.SlotsDraining, a.Leases,
			bytesText(a.BlockBytes), bytesText(a.PinnedBytes), note)
	}
}
