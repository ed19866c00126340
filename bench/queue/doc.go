// Package queue measures how long a fetch waits behind other fetches on the source's link, which law that wait follows, and
// at which utilization of the link fetch stops paying.
//
// # Usage
//
//	res, err := queue.Run(ctx, queue.Config{Quick: true})
//	for _, t := range res.Tables() {
//		err = t.Write(os.Stdout)
//	}
//	f, err := res.File(os.Args)
//	err = f.Save("queue.json")
//
// # What is measured
//
// A small discrete-event simulator of one server ([Discipline]) gives the waits under Poisson arrivals: first come, first
// served and processor sharing, with exponential, equal and lognormal service. Means come with 95 % intervals by batch
// means, the first tenth of the jobs left out, beside the laws of M/M/1, M/G/1 and processor sharing, and beside what the
// backlog that each job finds, divided by the rate, predicts.
//
// The crossover is that of the base model's utilization preset: fetch (85.73 ms) plus its wait against recompute (212.34 ms)
// plus the wait at a compute queue with utilization 0.1, both simulated. Each replication draws arrivals and services
// once and searches the utilization at which the two take as long; the mean over replications has a t-interval.
//
// Over real QUIC, two agents of package transfer are joined by the in-memory link of package wan, in real time. Lone transfers
// of several sizes give the link's rate and the time that does not depend on size; then fetches of exponential sizes arrive
// as a Poisson process until the 95 % interval of the mean wait, by batch means, is narrow enough (Config.Precision) and
// its batches do not correlate, or Config.Duration is over, which leaves the point inconclusive. The wait is completion less
// arrival less what the fetch would take alone.
//
// A mean of some hundred waits is mostly the luck of the draw, which says nothing of the link. So each wait over QUIC is taken
// less what the law's simulation gives that job among the very same arrivals, plus that law's long-run mean: the mean of these
// estimates the same mean wait, whether or not the link follows the law, with a narrower interval. LinkPoint.Raw has the waits as
// they were.
//
// Two senders are measured, one after the other. The first is that of daemons as they run by default; the law that counts for it is
// [LinkLaw]. The second serves all transfers in turn, with [SharingLaw]. Both laws are fixed beforehand and simulated at that
// utilization with many jobs. The two intervals overlap or do not; LinkPoint.Detectable says which difference would have kept them apart four
// times in five. To end as soon as the interval is narrow makes it a little too narrow on average; looks are few, and none
// before some hundred jobs. The same arrivals and sizes also go through the simulator under each order, job by job, and the
// nearest is named: that describes and decides nothing.
//
// # What the sender does
//
// By default package transfer serves one transfer of a tenant and class at a time, chunk by chunk: the one with the earliest deadline,
// and of those without one, as here, the one with the least left (shortest remaining processing time). What is in flight (chunks
// being written, the window and the bottleneck's queue) is first come, first served in front of it; Link.AheadSeconds, measured before
// any load with a small transfer beside a large one, is how much that is, and is part of the law. The mean wait is then below that of
// M/M/1, and large transfers wait longest.
//
// With transfer.Config.Concurrency above the number of transfers it serves them in turn, a chunk each. With chunks that are small
// beside the transfers that is processor sharing, of which the laws speak. The mean wait is that of first come, first served when sizes are
// exponential; how a wait grows with the job's own size (Point.SizeSlope) tells them apart. With connections whose windows are together
// below the bandwidth-delay product, as a short queue leaves them, a lone small transfer cannot fill the link, and no single-server law
// fits: Link.R2 and a warning say so.
//
// # Concurrency
//
// Run may be called concurrently, but measurements over QUIC then disturb one another. A Result is a value that nobody
// else refers to.
//
// # Limitations
//
// Arrivals are Poisson and independent of the waits: callers that stop asking while they wait see less. The link's part works
// in real time: on a busy machine the processor, not the link, sets the waits; LinkPoint.LateP99Seconds and a warning say so.
// Interrupting a run drops the point that is being measured.
package queue
