// Package doctor finds out why a node does not work, or will not: it looks at the configuration, the certificates, the
// host's limits, the memory filesystem, the running daemon, the GPUs, the engines, and at UDP to each peer, and says for
// everything that is wrong what to do.
//
// # Usage
//
//	findings := doctor.Run(ctx, doctor.Checks(doctor.Setup{Config: cfg, Configured: true}), doctor.Options{})
//	for _, f := range findings {
//		fmt.Println(f.Name, f.Status, f.Detail, f.Fix)
//	}
//
// A fault shows once: what can't be looked at because of another finding is [Unknown] and names that finding. Nothing is
// changed on the host; at a peer, one connection is opened and one call made.
//
// # Concurrency
//
// [Run] runs the checks of one list at the same time. A list is run once.
//
// # Limitations
//
// A UDP flow from here proves both directions of that flow, and not that the peer can begin one: firewalls and address
// translation treat the two differently. That direction is proven by the peer's own doctor, and is unknown here.
//
// The host's limits and filesystems are read on Linux only; elsewhere they are unknown.
package doctor
