// Package planner prices the ways in which a session can become warm in another region and says which is cheapest. It is
// pure: plain numbers in, plain values out, no clock, no I/O, no state, the same answer for the same inputs.
//
// # Usage
//
// Fill a [Request], a [Model], a [Compute] (the destination's replica) and a [Link] (the directed path from source to
// destination) and call [Decide]. The [Decision] holds one [ModePlan] a mode; a plan's seconds are the sum of its terms,
// in order. A mode that cannot be chosen says why ([Refusal] and a sentence) and, where its inputs allow, is priced all
// the same. [Recompute], [Fetch], [Hybrid] and [RedirectCost] price one mode alone. [Evaluate] decides in numbers alone, without
// an allocation; [Flips] says what would change the winner. [RLS] fits a replica's [PrefillLaw] to observed prefills, and [PageHinkley] tells
// when predictions no longer hold; unlike the rest these two have a state, which is the caller's.
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
// Functions are safe for concurrent use: they share no state and write to none of their arguments. An [RLS] and a [PageHinkley] are not.
//
// # Uncertainty
//
// An input is a figure with a spread (Compute.Spread and Link.Spread, relative deviations of the time that follows), an age and a
// source; beyond MaxAge it is unknown. Modes are ranked by P50 + κ·(P95−P50) where the spread of every eligible one is known, else by expected
// seconds. Where the engine can run hybrid (Request.Hybrid), fetch may be chosen only if its P95 is below what recompute is expected to take,
// and a link that was not measured means hybrid. An engine that cannot has neither rule: there fetch and recompute are ranked against
// one another, and a prior is taken as it is. A mode chosen before (Request.Previous) is left only for more than 10 % and more
// than one standard deviation.
//
// # Limitations
//
// A mode's spread is one relative figure, that of Compute or of Link; its time is taken for normally distributed, hybrid's for what
// follows from its two ends. Dollars and replica routing are not modelled. [ModeBackground] exists as a name only and is always refused with
// [RefusalNotBuilt]. The tail tokens that follow the last whole block are prefilled in every mode, so no mode but
// recompute is charged for them; hybrid counts them among those it splits. Hybrid is charged for no duplicate and no claim: at most two
// bandwidth-delay products and a block, and microseconds. A cold link is charged its slow start and not its handshake.
package planner
