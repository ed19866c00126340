package repair

// Stats are counters since a session or a Conn began, and what a session uses.
type Stats struct {
	// Sent from here: packets that parity covers, groups of them, and parity
	// itself with its bytes, headers of UDP and IP not counted.
	Packets, Groups, ParityPackets, ParityBytes uint64
	// As the peer reports of them, some 50 ms late.
	PeerLost, PeerRepaired, PeerUnrepaired uint64
	// Received here: parity packets, and groups of which some came. Lost are
	// packets that groups named and that had not come when the group was rebuilt or
	// given up: Repaired and Unrepaired ones. Groups whose parity was all lost are
	// not known.
	ParityReceived, GroupsReceived, Lost, Repaired, Unrepaired uint64
	// Strangers and Malformed are packets of the repair family that were dropped:
	// of no session here, and such that do not decode or do not fit. Of a Conn only.
	Strangers, Malformed uint64

	// Rejected are packets with a session's token that its key did not make or that
	// came before: forged, changed on the way, or replayed. They were dropped.
	Rejected uint64

	// Group, Symbols and Depth are what a session sends with: packets a group,
	// parity symbols of half a packet for it, groups open at a time. 0: no parity
	// is sent. Of a Session only.
	Group, Symbols, Depth int
}

// Add adds the counters of o.
func (s *Stats) Add(o Stats) {
	for _, v := range [...]struct {
		to   *uint64
		from uint64
	}{
		{&s.Packets, o.Packets},
		{&s.Groups, o.Groups},
		{&s.ParityPackets, o.ParityPackets},
		{&s.ParityBytes, o.ParityBytes},
		{&s.PeerLost, o.PeerLost},
		{&s.PeerRepaired, o.PeerRepaired},
		{&s.PeerUnrepaired, o.PeerUnrepaired},
		{&s.ParityReceived, o.ParityReceived},
		{&s.GroupsReceived, o.GroupsReceived},
		{&s.Lost, o.Lost},
		{&s.Repaired, o.Repaired},
		{&s.Unrepaired, o.Unrepaired},
		{&s.Strangers, o.Strangers},
		{&s.Malformed, o.Malformed},
		{&s.Rejected, o.Rejected},
	} {
		*v.to += v.from
	}
}
