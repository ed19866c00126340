// Package fault is where faults are put on purpose: the daemon's packages name the boundaries that data and state cross, and a build
// with the tag chaos can have any crossing fail, stall, corrupt what crosses, or kill the process. Without the tag every function here
// is a constant that the compiler removes.
//
// # Usage
//
// At a boundary:
//
//	if err := fault.At(fault.Commit, name); err != nil {
//		return err
//	}
//
// A test installs an Injector with a Schedule. A process of a build with the tag takes its own from the environment:
//
//	KVFERRY_FAULTS      the schedule, in the text form below
//	KVFERRY_FAULTS_LOG  a file that a line is appended to for each fault that strikes
//	KVFERRY_PLANTED     bugs to be planted (see Bug), comma-separated
//
// # Text form of a schedule
//
// Shots separated by commas, each boundary:ordinal:kind or boundary:first-last:kind, with =duration behind the kind stall:
//
//	commit:3:kill,send:17:short,read:5-9:corrupt,persist:2:error,reply:4:lose,receive:30:stall=2s
//
// The ordinal counts the crossings of the boundary by the whole process, from 1. Of several shots at one crossing the first
// strikes.
//
// Boundaries, and the kinds that mean something there besides stall and kill, which do everywhere:
//
//	read        the source has read pages of its arena for a chunk      error (its memory faults), corrupt
//	send        a chunk is about to go onto a stream                    error (the stream is reset), short (it ends early)
//	receive     a page has come off a stream                            error, short (both: the stream is cut here), corrupt
//	decode      a page is about to be decoded; raw ones are, too        error (it does not decode)
//	verify      the destination is about to check a page and place it   error (its memory faults), corrupt
//	reserve     slots are about to be taken                             error (the arena is full)
//	commit      a block is about to enter the index                     error
//	handover    the authority is about to decide a hand-over            error (its disk is full)
//	handedover  it has decided, and has not answered                    error, lose (both: the answer is lost)
//	adopt       the destination is about to record that it owns         error (its disk is full)
//	adopted     it has recorded that                                    -
//	reply       a peer's call has had its effect, and is to be answered  error, lose (both: the answer is lost)
//	persist     a file of state is about to be written                  error (its disk is full)
//
// A kind that means nothing at a boundary strikes and is logged all the same, and changes nothing.
// Persist is crossed with locks held: in virtual time a stall there stops the clock.
//
// # Log
//
// A line a fault: seconds since the start, shot as it was struck, and where:
//
//	12.345 commit:3:kill at kvferry-a@e
//
// # Concurrency
//
// All functions may be called concurrently.
package fault
