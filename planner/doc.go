// Package planner prices the ways in which a session can become warm in another region and says which is cheapest. It is
// pure: plain numbers in, plain values out, no clock, no I/O, no state, the same answer for the same inputs.
//
// # Usage
//
// Fill a [Request], a [Model], a [Compute] (the destination's replica) and a [Link] (the directed path from source to
// destination) and call [Decide]. The [Decision] holds one [ModePlan] a mode; a plan's seconds are the sum of its terms,
// in order. A mode that cannot be chosen says why ([Refusal] and a sentence) and, where its inputs allow, is priced all
// the same. [Recompute], [Fetch] and [RedirectCost] price one mode alone.
//
// [EvaluateBase] is the base model: linear prefill, one round trip, warm, no window cap. [CrossoverPreset] and
// [UtilizationPreset] hold its published inputs.
//
// Unknown is not zero: where a needed figure is absent, the mode is not priced and the plan names what is missing. In all
// input structs zero means the documented default (often "unknown"), negative means off where that is documented and is
// an [InputError] elsewhere; NaN and infinities always are.
//
// # Concurrency
//
// Everything is safe for concurrent use: functions share no state and write to none of their arguments.
//
// # Limitations
//
// A mode's spread is one relative figure, that of Compute or of Link; its time is taken for normally distributed. Modes are
// ranked by P95 only where the spread of every eligible one is known. Dollars, M/G/1 queues and replica routing are
// not modelled. [ModeHybrid] and [ModeBackground] exist as names only and are always refused with
// [RefusalNotBuilt]. The tail tokens that follow the last whole block are prefilled in every mode, so no mode but
// recompute is charged for them. A cold link is charged its slow start and not its handshake.
package planner
