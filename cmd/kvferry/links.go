package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (a *app) newLinks() *cobra.Command {
	return &cobra.Command{
		Use: "links", Short: "Show the links of the daemon at --addr: round-trip times, goodput, traffic", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, c clients) error {
				resp, err := c.region.ListLinks(ctx, &pb.ListLinksRequest{})
				if err != nil {
					return err
				}
				list := make([]linkView, 0, len(resp.GetLinks()))
				for _, l := range resp.GetLinks() {
					list = append(list, viewLink(l))
				}
				return a.print(map[string]any{"links": list}, func(w io.Writer) {
					row(w, "PEER", "ADDRESS", "UP", "STRIPES", "RTT MIN", "RTT", "GOODPUT", "CAPACITY", "LOSS", "CODEC IN", "CODEC OUT", "SENT", "RECEIVED", "LOST", "BACKLOG", "NOTE")
					for _, l := range list {
						row(w, l.Peer.text(), dash(l.Address), yesNo(l.Connected), l.Stripes, known(l.RTTMinSeconds), known(l.RTTSmoothedSeconds), l.goodput(),
							l.Capacity.text(rateText), l.Loss.text(shareText), l.PagesReceived.text(), l.PagesSent.text(), bytesText(l.BytesSent), bytesText(l.BytesReceived), l.PacketsLost, bytesText(l.EgressBacklogBytes), l.Error)
					}
				})
			})
		},
	}
}

// shareText is a share in percent.
func shareText(s float64) string { return fmt.Sprintf("%.3g %%", 100*s) }

// known is seconds, or a question mark for what was never measured.
func known(s float64) string {
	if s == 0 {
		return "?"
	}
	return secondsText(s)
}

// goodput says the number and what it rests on.
func (l linkView) goodput() string {
	switch {
	case l.GoodputBps == 0:
		return "unknown"
	case l.Goodput.Basis == "persisted":
		return l.Goodput.text(rateText)
	case !l.Measured:
		return rateText(l.GoodputBps) + " (prior)"
	}
	return fmt.Sprintf("%s (%s ago)", rateText(l.GoodputBps), secondsText(l.AgeSeconds))
}
