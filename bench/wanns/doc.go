// Package wanns joins two network namespaces of Linux by the link model of bench/wan: kernel TCP, rsync, QUIC or anything
// else that speaks IPv4 runs over it unchanged, on a kernel that has no netem.
//
// # The picture
//
//	namespace A            this process              namespace B
//	programs              ┌────────────┐              programs
//	   │                  │ Link A → B │                 │
//	 wan0 10.77.0.1 ◀───▶ │            │ ◀───▶ wan0 10.77.0.2
//	 (TUN)                │ Link B → A │            (TUN)
//	                      └────────────┘
//
// Each namespace has a TUN device; what is sent into one comes out of the other after the link's rate, queue, loss and
// delay. A packet counts with its IP header and everything in it. The namespaces are fresh and have a loopback and this
// device only: nothing in them reaches the host's networks, and their addresses are nobody else's concern.
//
// # Usage
//
//	p, err := wanns.Open(wanns.Config{A: "east", B: "west", Model: m})
//	defer p.Close()
//	// ip netns exec west iperf3 -s &   ip netns exec east iperf3 -c 10.77.0.2
//	err = p.Do(wanns.A, func() error { return fetch("10.77.0.2:80") })
//
// It takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and /dev/net/tun. TCP in the namespaces may use windows of 64 MiB.
//
// # Concurrency
//
// A Path is safe for concurrent use. It owns two goroutines, one a device, besides those of its links.
//
// # Limitations
//
// IPv4 only. Packets cross this process one by one: two shared cores carried one TCP stream at 0.7 Gbit/s of a 1 Gbit/s link
// and at 1.4 Gbit/s without a rate (MTU 1,500, 20 ms, 256 MiB), so keep rates below 500 Mbit/s or raise the MTU.
// [Path.Stats] counts packets that a device dropped because this process was too slow: they are the machine's loss and not
// the link's. A process that is killed leaves its namespaces behind: "ip netns del NAME" removes one.
package wanns
