package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/bench/wanns"
)

func (a *app) newBenchWan(b *benchFlags) *cobra.Command {
	var o wanOptions
	cmd := &cobra.Command{
		Use:   "wan",
		Short: "Be a wide-area link: a UDP relay, or two network namespaces joined by one",
		Long: `wan makes a link that behaves as --wan says: a rate behind a queue that drops, a delay, loss, jitter. It runs until Ctrl-C,
or the schedule's stop, and then prints what the link carried and dropped.

With --listen and --target it is a relay of UDP datagrams between processes: what comes to --listen goes to --target, and the
answers come back. No rights are needed. To put it between two daemons run one relay each way, and give each daemon the relay's
address as its peer's.

With --netns it makes two network namespaces, each with one device, and carries every IPv4 packet between them: kernel TCP,
rsync, anything. It takes Linux and root, and removes the namespaces at the end. Start programs in them with ip netns exec.

A schedule is a file with one event a line; a set changes the keys that it names:

  at 10s set rtt=150ms,rate=50Mbps
  at 20s cut
  at 25s heal
  at 30s stop`,
		Example: `  kvferry bench wan --listen 127.0.0.1:7000 --target 127.0.0.1:7001 --wan rtt=70ms,rate=100Mbps,loss=0
  kvferry bench wan --listen :7000 --target eu.example:7441 --wan rtt=70ms,rate=1Gbps,loss=0.001 --schedule day.txt -o json
  sudo kvferry bench wan --netns east,west --wan rtt=70ms,rate=500Mbps,loss=0.0001 &
  sudo ip netns exec west iperf3 -s &  sudo ip netns exec east iperf3 -c 10.77.0.2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.save != "" || b.diff != "" || b.allowUnlike {
				return usagef("", "none of --save, --diff and --allow-unlike; keep what -o json prints", "bench wan measures nothing that could be compared")
			}
			if err := o.parse(cmd.Flags().Changed("net")); err != nil {
				return err
			}
			return a.benchWan(cmd.Context(), &o)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&o.link, "wan", "rtt=70ms,rate=100Mbps,loss=0", "the link: rtt, rate, loss, and optionally jitter, queue, burst, seed, mtu")
	fl.StringVar(&o.listen, "listen", "", "relay: UDP address that datagrams are sent to, host:port")
	fl.StringVar(&o.target, "target", "", "relay: UDP address that they go on to, host:port")
	fl.StringVar(&o.schedule, "schedule", "", "file of what happens to the link over time")
	fl.StringVar(&o.netns, "netns", "", "names of two network namespaces to make, A,B")
	fl.StringVar(&o.network, "net", "10.77.0.0/24", "namespaces: their IPv4 network; A has the first address, B the second")
	return cmd
}

// wanOptions are the flags of bench wan, and what they say.
type wanOptions struct {
	link, listen, target, schedule, netns, network string

	model  wan.Model
	events wan.Schedule
	ns     wanns.Config // with --netns
}

// parse reads the flags; its errors are of usage.
func (o *wanOptions) parse(netGiven bool) error {
	var err error
	if o.model, err = wan.Parse(o.link); err != nil {
		return usagef(o.link, "key=value pairs such as rtt=70ms,rate=100Mbps,loss=0", "--wan: %v", err)
	}
	relay := o.listen != "" || o.target != ""
	switch {
	case relay && o.netns != "":
		return usagef("", "either --listen and --target, or --netns", "--netns excludes --listen and --target")
	case relay && (o.listen == "" || o.target == ""):
		return usagef("", "both, such as --listen 127.0.0.1:7000 --target 127.0.0.1:7001", "--listen and --target go together")
	case !relay && o.netns == "":
		return usagef("", "--listen HOST:PORT --target HOST:PORT for a UDP relay, or --netns A,B", "neither a relay nor namespaces are asked for")
	case netGiven && o.netns == "":
		return usagef("", "--netns A,B beside --net", "--net has no meaning for a relay")
	}
	if relay {
		for _, f := range []struct{ flag, address string }{{"listen", o.listen}, {"target", o.target}} {
			host, port, err := net.SplitHostPort(f.address)
			n := 0
			if err == nil {
				n, err = net.DefaultResolver.LookupPort(context.Background(), "udp", port) // a number or a service's name: nothing is asked
			}
			if err != nil || f.flag == "target" && (host == "" || n == 0) {
				return usagef(f.address, "HOST:PORT, such as 127.0.0.1:7000", "--%s %s is no UDP address", f.flag, f.address)
			}
		}
	}
	if o.netns != "" {
		if err := o.parseNamespaces(); err != nil {
			return err
		}
	}
	if o.schedule == "" {
		return nil
	}
	f, err := os.Open(o.schedule)
	if err != nil {
		return usagef(o.schedule, "a file that can be read", "--schedule: %v", err)
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost
	if o.events, err = wan.ParseSchedule(f, o.model); err != nil {
		return usagef("", "lines such as 'at 10s set rtt=150ms', 'at 20s cut', 'at 25s heal', 'at 30s stop'", "--schedule %s: %v", o.schedule, err)
	}
	return nil
}

func (o *wanOptions) parseNamespaces() error {
	na, nb, two := strings.Cut(o.netns, ",")
	if !two {
		return usagef(o.netns, "two names, such as east,west", "--netns names %d namespace", 1)
	}
	network, err := netip.ParsePrefix(o.network)
	if err != nil {
		return usagef(o.network, "an IPv4 network such as 10.77.0.0/24", "--net: %v", err)
	}
	o.ns = wanns.Config{A: na, B: nb, Net: network, Model: o.model}
	if err := o.ns.Validate(); err != nil {
		return usagef("", "two different names, a network from /8 to /30, an MTU that IPv4 has", "%v", err)
	}
	return nil
}

// wanLink is what bench wan runs: a relay or a path.
type wanLink interface {
	wan.Shaper
	io.Closer
}

// wanView is what bench wan prints at its end.
type wanView struct {
	Form    string  `json:"form"` // "relay" or "netns"
	WAN     string  `json:"wan"`  // at the start
	Seconds float64 `json:"seconds"`
	Events  int     `json:"events"` // of the schedule that happened

	Relay *wanRelayView `json:"relay,omitempty"`
	Netns *wanNetnsView `json:"netns,omitempty"`

	// Up is what went from client to target, or from the first namespace to the second; Down is the other way.
	Up   wanDirView `json:"up"`
	Down wanDirView `json:"down"`
}

type wanRelayView struct {
	Listen  string `json:"listen"`
	Target  string `json:"target"`
	Flows   int    `json:"flows"`
	Evicted int64  `json:"evicted"`
}

type wanNetnsView struct {
	A            string `json:"a"`
	B            string `json:"b"`
	AddressA     string `json:"address_a"`
	AddressB     string `json:"address_b"`
	DeviceDropsA int64  `json:"device_drops_a"` // before the link, because this process was late; -1: unknown
	DeviceDropsB int64  `json:"device_drops_b"`
}

type wanDirView struct {
	Packets         int64   `json:"packets"`
	Bytes           int64   `json:"bytes"`
	Delivered       int64   `json:"delivered"`
	DeliveredBytes  int64   `json:"delivered_bytes"`
	DeliveredBps    float64 `json:"delivered_bps"`
	DroppedLoss     int64   `json:"dropped_loss"`
	DroppedQueue    int64   `json:"dropped_queue"`
	DroppedCut      int64   `json:"dropped_cut"`
	DroppedMTU      int64   `json:"dropped_mtu"`
	DroppedReceiver int64   `json:"dropped_receiver"`
	MaxQueueBytes   int64   `json:"max_queue_bytes"`
}

func viewWanDir(s wan.LinkStats, took float64) wanDirView {
	v := wanDirView{
		Packets: s.Packets, Bytes: s.Bytes, Delivered: s.Delivered, DeliveredBytes: s.DeliveredBytes, DroppedLoss: s.DroppedLoss, DroppedQueue: s.DroppedQueue,
		DroppedCut: s.DroppedCut, DroppedMTU: s.DroppedMTU, DroppedReceiver: s.DroppedReceiver, MaxQueueBytes: s.MaxQueueBytes,
	}
	if took > 0 {
		v.DeliveredBps = float64(8*s.DeliveredBytes) / took
	}
	return v
}

// benchWan runs the link until ctx ends or the schedule stops it; both are its normal end.
func (a *app) benchWan(ctx context.Context, o *wanOptions) error {
	v := wanView{WAN: o.model.String()}
	link, finish, err := a.openWan(o, &v)
	if err != nil {
		return err
	}
	began := time.Now()
	stopped := o.events.Run(ctx, link, func(e wan.Event) {
		v.Events++
		text := ""
		if e.Action == wan.Set {
			text = " " + e.Model.String()
		}
		_, _ = fmt.Fprintf(a.stderr, "%6.1fs  %v%s\n", time.Since(began).Seconds(), e.Action, text) // a lost line of progress is no failure
	})
	if !stopped {
		<-ctx.Done()
	}
	v.Seconds = time.Since(began).Seconds()
	finish()
	err = link.Close()
	return errors.Join(a.print(v, v.table), err)
}

// openWan opens what is asked for and says on stderr how to use it. finish takes the counters over.
func (a *app) openWan(o *wanOptions, v *wanView) (link wanLink, finish func(), err error) {
	if o.netns == "" {
		r, err := wan.OpenRelay(wan.RelayConfig{Listen: o.listen, Target: o.target, Model: o.model})
		if err != nil {
			return nil, nil, &fault{Code: exitFailed, Reason: "FAILED", Message: err.Error(), Fix: "give --listen a free UDP address of this host, and --target one that resolves"}
		}
		v.Form, v.Relay = "relay", &wanRelayView{Listen: r.Addr().String(), Target: o.target}
		_, _ = fmt.Fprintf(a.stderr, "relay: UDP %s -> %s, %s; Ctrl-C ends it\n", r.Addr(), o.target, o.model)
		return r, func() {
			st := r.Stats()
			v.Up, v.Down = viewWanDir(st.Up, v.Seconds), viewWanDir(st.Down, v.Seconds)
			v.Relay.Flows, v.Relay.Evicted = st.Flows, st.Evicted
		}, nil
	}
	p, err := wanns.Open(o.ns)
	if err != nil {
		f := &fault{Code: exitRefused, Reason: "REFUSED", Message: err.Error(), Fix: "use the UDP relay (--listen and --target), which needs no rights"}
		switch {
		case errors.Is(err, wanns.ErrNotPermitted):
			f.Fix = "sudo kvferry bench wan --netns ..., or " + f.Fix
		case errors.Is(err, wanns.ErrNoTUN):
			f.Fix = "modprobe tun, or " + f.Fix
		case errors.Is(err, wanns.ErrExists):
			f.Fix = "give other names, or remove the old ones: ip netns del " + o.ns.A + "; ip netns del " + o.ns.B
		case !errors.Is(err, wanns.ErrUnsupported):
			f.Code, f.Reason = exitFailed, "FAILED"
		}
		return nil, nil, f
	}
	v.Form, v.Netns = "netns", &wanNetnsView{A: o.ns.A, B: o.ns.B, AddressA: p.Addr(wanns.A).String(), AddressB: p.Addr(wanns.B).String()}
	_, _ = fmt.Fprintf(a.stderr, "namespaces: %s (%s) <-> %s (%s), %s; run programs with 'ip netns exec %s ...'; Ctrl-C ends it\n",
		o.ns.A, v.Netns.AddressA, o.ns.B, v.Netns.AddressB, o.model, o.ns.A)
	return p, func() {
		st := p.Stats()
		v.Up, v.Down = viewWanDir(st.AToB, v.Seconds), viewWanDir(st.BToA, v.Seconds)
		v.Netns.DeviceDropsA, v.Netns.DeviceDropsB = st.DeviceDropsA, st.DeviceDropsB
	}, nil
}

func (v wanView) table(w io.Writer) {
	up, down := "TO TARGET", "TO CLIENTS"
	if v.Netns != nil {
		up, down = v.Netns.A+" -> "+v.Netns.B, v.Netns.B+" -> "+v.Netns.A
	}
	row(w, "", up, down)
	for _, r := range []struct {
		name string
		cell func(wanDirView) any
	}{
		{"packets", func(d wanDirView) any { return d.Packets }},
		{"bytes", func(d wanDirView) any { return bytesText(d.Bytes) }},
		{"delivered", func(d wanDirView) any { return d.Delivered }},
		{"mean rate", func(d wanDirView) any { return rateText(d.DeliveredBps) }},
		{"lost", func(d wanDirView) any { return d.DroppedLoss }},
		{"dropped: queue full", func(d wanDirView) any { return d.DroppedQueue }},
		{"dropped: link cut", func(d wanDirView) any { return d.DroppedCut }},
		{"dropped: above MTU", func(d wanDirView) any { return d.DroppedMTU }},
		{"dropped: receiver", func(d wanDirView) any { return d.DroppedReceiver }},
		{"deepest queue", func(d wanDirView) any { return bytesText(d.MaxQueueBytes) }},
	} {
		row(w, r.name, r.cell(v.Up), r.cell(v.Down))
	}
	if v.Netns != nil {
		row(w, "dropped: this process late", v.Netns.DeviceDropsA, v.Netns.DeviceDropsB)
	}
	row(w)
	note := fmt.Sprintf("%s; %s", secondsText(v.Seconds), v.WAN)
	if v.Relay != nil {
		note += fmt.Sprintf("; %d clients", v.Relay.Flows)
	}
	if v.Events > 0 {
		note += fmt.Sprintf("; %d events of the schedule", v.Events)
	}
	row(w, note)
}
