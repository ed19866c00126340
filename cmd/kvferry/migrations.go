package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (a *app) newMigrations() *cobra.Command {
	return group("migrations", "List, show and cancel migrations of the daemon at --addr",
		a.newMigrationsList(), a.newMigrationsGet(), a.newMigrationsCancel())
}

func (a *app) newMigrationsList() *cobra.Command {
	var (
		tenant string
		active bool
		limit  int64
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List recent migrations, newest first", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, c clients) error {
				resp, err := c.migration.ListMigrations(ctx, &pb.ListMigrationsRequest{Tenant: tenant, ActiveOnly: active, Limit: uint32(limit)})
				if err != nil {
					return err
				}
				list := make([]migrationView, 0, len(resp.GetMigrations()))
				for _, m := range resp.GetMigrations() {
					list = append(list, viewMigration(m))
				}
				return a.print(map[string]any{"migrations": list}, func(w io.Writer) {
					row(w, "MIGRATION", "SESSION", "TENANT", "STATE", "MODE", "PAGES", "BYTES", "TOOK", "AGE")
					for _, m := range list {
						row(w, m.MigrationID, m.SessionID, dash(m.Tenant), m.State, dash(m.Mode), m.Pages, bytesText(m.Bytes), secondsText(m.Seconds), secondsText(m.AgeSeconds))
					}
				})
			})
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "only this tenant's (default: all)")
	cmd.Flags().BoolVar(&active, "active", false, "only those that are not over")
	cmd.Flags().Var(newCount(&limit, 100, 1, 1000), "limit", "at most this many")
	return cmd
}

func (a *app) newMigrationsGet() *cobra.Command {
	return a.oneMigration("get [MIGRATION]", "Show one migration", func(ctx context.Context, c clients, id, requestID string) (*pb.Migration, error) {
		resp, err := c.migration.GetMigration(ctx, &pb.GetMigrationRequest{MigrationId: id, RequestId: requestID})
		return resp.GetMigration(), err
	})
}

func (a *app) newMigrationsCancel() *cobra.Command {
	return a.oneMigration("cancel [MIGRATION]", "Cancel a migration; the session stays whole at its owner", func(ctx context.Context, c clients, id, requestID string) (*pb.Migration, error) {
		resp, err := c.migration.CancelMigration(ctx, &pb.CancelMigrationRequest{MigrationId: id, RequestId: requestID})
		return resp.GetMigration(), err
	})
}

// oneMigration is a command that makes one call on one migration and shows what came back.
func (a *app) oneMigration(use, short string, call func(ctx context.Context, c clients, id, requestID string) (*pb.Migration, error)) *cobra.Command {
	var byRequest string
	cmd := &cobra.Command{
		Use: use, Short: short, Args: oneName(&byRequest),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c clients) error {
				m, err := call(ctx, c, first(args), byRequest)
				if err != nil {
					return err
				}
				v := migrateView{Migration: viewMigration(m), Plan: viewPlan(m.GetPlan())}
				return a.print(v, v.table)
			})
		},
	}
	cmd.Flags().StringVar(&byRequest, "request-id", "", "the caller's id instead of the daemon's")
	return cmd
}

// oneName wants a migration's id or --request-id, and not both.
func oneName(requestID *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		n := len(args)
		if *requestID != "" {
			n++
		}
		if n == 1 {
			return nil
		}
		return usagef("", "exactly one of a migration id and --request-id; 'kvferry migrations list' shows ids", "%d migrations are named", n)
	}
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// clients are the daemon's services.
type clients struct {
	migration pb.MigrationServiceClient
	region    pb.RegionServiceClient
}

// ask dials, bounds the time, calls fn and hangs up.
func (a *app) ask(cmd *cobra.Command, fn func(context.Context, clients) error) error {
	conn, err := a.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the call's own error is known
	ctx, cancel := a.call(cmd.Context())
	defer cancel()
	return fn(ctx, clients{pb.NewMigrationServiceClient(conn), pb.NewRegionServiceClient(conn)})
}
