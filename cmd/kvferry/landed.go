package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// orderNames are the values of --order.
var orderNames = map[string]pb.FetchOrder{
	"blocks": pb.FetchOrder_FETCH_ORDER_UNSPECIFIED, "layer-group": pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR,
}

// layersView is what has landed of a group of layers, and when: seconds since the migration was asked for.
type layersView struct {
	FirstLayer uint32  `json:"first_layer"`
	Layers     uint32  `json:"layers"`
	Blocks     int     `json:"blocks"`
	First      float64 `json:"first_seconds"`
	Last       float64 `json:"last_seconds"`
}

// landedLayers gathers the groups of a stream.
type landedLayers struct {
	began time.Time
	rows  []layersView // by first layer
}

// add takes in what one message says.
func (l *landedLayers) add(parts []*pb.LandedLayers) {
	for _, p := range parts {
		now := time.Since(l.began).Seconds()
		at, ok := slices.BinarySearchFunc(l.rows, p.GetFirstLayer(), func(v layersView, first uint32) int { return cmp.Compare(v.FirstLayer, first) })
		if !ok {
			l.rows = slices.Insert(l.rows, at, layersView{FirstLayer: p.GetFirstLayer(), Layers: p.GetLayers(), First: now})
		}
		l.rows[at].Blocks += len(p.GetKeys())
		l.rows[at].Last = now
	}
}

// layersTable writes the groups for a person.
func layersTable(w io.Writer, rows []layersView) {
	for _, r := range rows {
		name := fmt.Sprintf("layers %d-%d:", r.FirstLayer, r.FirstLayer+r.Layers-1)
		row(w, name, fmt.Sprintf("%d blocks landed after %s to %s", r.Blocks, secondsText(r.First), secondsText(r.Last)))
	}
}
