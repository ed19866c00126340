// Package hybrid simulates migrations that prefill from the front while blocks arrive from the back, beside fetch, recompute, a split fixed
// in advance, and an oracle that knows the link: over links, lengths, GPUs, and how wrong what is believed of the link is.
//
// # Usage
//
//	res, err := hybrid.Run(ctx, hybrid.Config{})
//	f, err := res.File(os.Args)
//	err = f.Save("hybrid.json")
//
// # What is simulated
//
// A cell is a believed goodput, a round-trip time, a length, a GPU, and sigma. In each draw the link's true goodput is lognormal, its mean
// what is believed and sigma the standard deviation of its logarithm, and stays what it is for the migration. Prefill takes what the planner's formula
// says, attention with it. The round trips of a migration pass before the first byte lands (planner.Link says which these are); prefill
// starts at once.
//
// Fetch, recompute and the oracle are the planner's prices for the true goodput; the fixed split is its optimum for the believed one. Hybrid is
// no formula: the front claims runs of blocks, at first as many as it prefills until there is a plan, then no more than its share of what
// nobody has by the two speeds; the fetch asks from the back, in transfers of an eighth of the window, the window being two
// bandwidth-delay products by what past transfers gave or, once bytes have landed for a while, by what lands. A claim for
// blocks that were asked for takes them over if it prefills them sooner than they land by what is known; what still comes of
// them within a round trip is duplicate.
//
// Every cell has the same deviates, so that cells differ by their settings alone, and the same seed gives the same numbers on every
// machine.
//
// With Config.Real two daemons make migrations besides, over the link model and into an engine that takes the time of a GPU: see Real.
//
// # Concurrency
//
// Run may be called concurrently. A Result is a value that nobody else refers to.
//
// # Limitations
//
// The link neither varies within a migration nor loses anything, its connections are warm and the GPU is idle. Prefill in pieces costs
// no more than Config.ClaimSeconds a piece; an engine whose short pieces are slower needs a larger one. The destination holds nothing of the
// session before. Loading blocks into the GPU is free.
package hybrid
