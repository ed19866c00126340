package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (a *app) newPlans() *cobra.Command {
	var (
		worst, shadow bool
		mode, tenant  string
		limit         int64
	)
	modes := []string{"fetch", "hybrid", "recompute", "redirect"}
	cmd := &cobra.Command{
		Use:   "plans",
		Short: "List what was predicted of migrations into the daemon at --addr, and what came",
		Long: `plans lists the plans of migrations that have ended, newest first: what was decided, what it was predicted to take, and what it took.

Only a migration that committed by the mode decided on, and moved blocks, took something that was predicted: an engine's prefill
after a RECOMPUTE is out of the daemon's sight. --worst lists these alone, the farthest off first: twice as long counts as much as half.
Plans of shadow mode moved nothing. Plans outlive restarts of the daemon; migration.keep says how many are kept.`,
		Example: `  kvferry plans
  kvferry plans --worst -n 10
  kvferry plans --mode hybrid -o json
  kvferry plans get MIGRATION       # every mode's terms beside what came`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := &pb.ListPlansRequest{Worst: worst, Tenant: tenant, ShadowOnly: shadow, Limit: uint32(limit), Mode: modeNames[mode]}
			return a.ask(cmd, func(ctx context.Context, c clients) error {
				resp, err := c.migration.ListPlans(ctx, req)
				if err != nil {
					return err
				}
				list := make([]planRecordView, 0, len(resp.GetPlans()))
				for _, r := range resp.GetPlans() {
					list = append(list, viewPlanRecord(r))
				}
				return a.print(map[string]any{"plans": list}, func(w io.Writer) { plansTable(w, list, time.Now()) })
			})
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&worst, "worst", false, "those whose prediction was farthest off, first")
	fl.BoolVar(&shadow, "shadow", false, "only those of shadow mode")
	fl.Var(newChoice(&mode, "", modes...), "mode", "only those that decided on this mode: "+strings.Join(modes, ", "))
	fl.StringVar(&tenant, "tenant", "", "only this tenant's (default: all)")
	fl.VarP(newCount(&limit, 100, 1, 1000), "limit", "n", "at most this many")
	complete(cmd, "mode", modes...)
	cmd.AddCommand(a.newPlansGet())
	return cmd
}

func (a *app) newPlansGet() *cobra.Command {
	var byRequest string
	cmd := &cobra.Command{
		Use: "get [MIGRATION]", Short: "Show one plan: every mode's terms beside what came", Args: oneName(&byRequest),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c clients) error {
				resp, err := c.migration.GetPlan(ctx, &pb.GetPlanRequest{MigrationId: first(args), RequestId: byRequest})
				if err != nil {
					return err
				}
				v := viewPlanRecord(resp.GetPlan())
				return a.print(v, v.table)
			})
		},
	}
	cmd.Flags().StringVar(&byRequest, "request-id", "", "the caller's id instead of the daemon's")
	return cmd
}

// planRecordView is a plan and what came of it.
type planRecordView struct {
	MigrationID string    `json:"migration_id"`
	RequestID   string    `json:"request_id"`
	Tenant      string    `json:"tenant"`
	SessionID   string    `json:"session_id"`
	Source      *nodeView `json:"source"`
	Asked       string    `json:"asked"` // empty: the planner chose
	Decided     string    `json:"decided"`
	CarriedOut  string    `json:"carried_out"`
	Shadow      bool      `json:"shadow"`
	State       string    `json:"state"`
	Code        string    `json:"code"`
	Replanned   string    `json:"replanned"`
	// PredictedSeconds and PredictedP95Seconds are null when they are not known, ActualOverPredicted where what came is not what
	// was predicted.
	PredictedSeconds    *float64       `json:"predicted_seconds"`
	PredictedP95Seconds *float64       `json:"predicted_p95_seconds"`
	ActualSeconds       float64        `json:"actual_seconds"`
	ActualOverPredicted *float64       `json:"actual_over_predicted"`
	Steps               []planStepView `json:"steps"`
	Bytes               int64          `json:"bytes"`
	BlocksMoved         int64          `json:"blocks_moved"`
	BlocksTotal         int64          `json:"blocks_total"`
	Tokens              int64          `json:"tokens"`
	Ended               time.Time      `json:"ended"`
	Plan                *planView      `json:"plan"`
}

// planStepView is the time spent in one state.
type planStepView struct {
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
}

func viewPlanRecord(r *pb.PlanRecord) planRecordView {
	v := planRecordView{
		MigrationID: r.GetMigrationId(), RequestID: r.GetRequestId(), Tenant: r.GetSession().GetTenant(), SessionID: r.GetSession().GetSessionId(),
		Source: viewNode(r.GetSource()), Asked: modeName(r.GetAsked()), Decided: modeName(r.GetDecided()), CarriedOut: modeName(r.GetCarriedOut()),
		Shadow: r.GetShadow(), State: stateName(r.GetState()), Code: r.GetCode(), Replanned: r.GetReplanned(),
		PredictedSeconds: r.PredictedSeconds, PredictedP95Seconds: r.PredictedP95Seconds, ActualSeconds: r.GetActualSeconds(),
		ActualOverPredicted: r.ActualOverPredicted, Steps: []planStepView{}, Bytes: r.GetBytes(), BlocksMoved: r.GetBlocksMoved(),
		BlocksTotal: r.GetBlocksTotal(), Tokens: r.GetTokens(), Ended: r.GetEnded().AsTime(), Plan: viewPlan(r.GetPlan()),
	}
	for _, s := range r.GetSteps() {
		v.Steps = append(v.Steps, planStepView{stateName(s.GetState()), s.GetSeconds()})
	}
	return v
}

// plansTable lists plans for a person.
func plansTable(w io.Writer, list []planRecordView, now time.Time) {
	row(w, "MIGRATION", "SESSION", "TENANT", "DECIDED", "RUNNER-UP", "STATE", "PREDICTED", "P95", "TOOK", "OVER PREDICTED", "ENDED")
	for _, v := range list {
		took := secondsText(v.ActualSeconds)
		if v.Shadow {
			took = "nothing moved"
		}
		row(w, v.MigrationID, dash(v.SessionID), dash(v.Tenant), v.decided(), v.runnerUp(), v.State, optionalSeconds(v.PredictedSeconds),
			optionalSeconds(v.PredictedP95Seconds), took, v.ratio(), secondsText(max(0, now.Sub(v.Ended).Round(time.Second).Seconds()))+" ago")
	}
}

// decided is the mode decided on, and what is special about it.
func (v planRecordView) decided() string {
	text := dash(v.Decided)
	switch {
	case v.Shadow:
		text += " (shadow)"
	case v.Replanned != "":
		text += ", given up"
	}
	return text
}

func (v planRecordView) runnerUp() string {
	if v.Plan == nil {
		return "-"
	}
	return dash(v.Plan.RunnerUp)
}

func (v planRecordView) ratio() string {
	if v.ActualOverPredicted == nil {
		return "-"
	}
	return fmt.Sprintf("%.3gx", *v.ActualOverPredicted)
}

// optionalSeconds is s for a person; "?": it is not known.
func optionalSeconds(s *float64) string {
	if s == nil {
		return "?"
	}
	return secondsText(*s)
}

// table writes one record for a person: what came, then the plan.
func (v planRecordView) table(w io.Writer) {
	row(w, "migration:", v.MigrationID)
	row(w, "request id:", v.RequestID)
	row(w, "session:", dash(v.SessionID)+tenantText(v.Tenant))
	row(w, "source:", v.Source.text())
	by := "by the planner"
	if v.Asked != "" {
		by = "by the request"
	}
	row(w, "decided:", dash(v.Decided), by)
	switch {
	case v.Shadow:
		row(w, "carried out:", "nothing: shadow mode")
	case v.Replanned != "":
		row(w, "carried out:", v.CarriedOut, v.Replanned)
	default:
		row(w, "carried out:", dash(v.CarriedOut))
	}
	row(w, "ended:", v.State, dash(v.Code), v.Ended.Format(time.RFC3339))
	predicted := optionalSeconds(v.PredictedSeconds)
	if v.PredictedP95Seconds != nil {
		predicted += " (P95 " + secondsText(*v.PredictedP95Seconds) + ")"
	}
	row(w, "predicted:", predicted)
	row(w, "took:", secondsText(v.ActualSeconds), v.verdict())
	for _, s := range v.Steps {
		row(w, "  "+strings.ToLower(s.State), secondsText(s.Seconds))
	}
	row(w, "moved:", fmt.Sprintf("%d of %d blocks, %s; %d tokens", v.BlocksMoved, v.BlocksTotal, bytesText(v.Bytes), v.Tokens))
	if v.Plan != nil {
		row(w)
		v.Plan.table(w)
	}
}

// verdict holds what came to what was predicted.
func (v planRecordView) verdict() string {
	switch {
	case v.ActualOverPredicted == nil:
		return "not what was predicted: no blocks moved, or not to the end"
	case v.PredictedP95Seconds == nil:
		return v.ratio() + " what was predicted"
	case v.ActualSeconds > *v.PredictedP95Seconds:
		return v.ratio() + " what was predicted, above its P95"
	}
	return v.ratio() + " what was predicted, within its P95"
}
