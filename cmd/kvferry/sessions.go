package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (a *app) newSessions() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use: "sessions", Short: "List sessions that the daemon at --addr owns or has handed over", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, c clients) error {
				list := []sessionView{}
				for page, more := "", true; more; more = page != "" {
					resp, err := c.region.ListSessions(ctx, &pb.ListSessionsRequest{Tenant: tenant, Page: page})
					if err != nil {
						return err
					}
					for _, s := range resp.GetSessions() {
						list = append(list, viewSession(s))
					}
					page = resp.GetNextPage()
				}
				return a.print(map[string]any{"sessions": list}, func(w io.Writer) {
					row(w, "SESSION", "TENANT", "OWNER", "TOKENS", "BLOCKS HERE", "EPOCH", "VERSION", "REPIN SEQ")
					for _, s := range list {
						row(w, s.SessionID, dash(s.Tenant), s.OwnerNodeID, s.Tokens, fmt.Sprintf("%d of %d", s.BlocksPresent, s.Blocks), s.Epoch, s.Version, s.RepinSeq)
					}
				})
			})
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "only this tenant's (default: all)")
	return cmd
}
