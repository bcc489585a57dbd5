package simnic

// State of a send or receive queue, in the numbers of the device.
type State uint8

// Queue states.
const (
	StateReset State = 0 // executes nothing; counters are 0 when the queue leaves it
	StateReady State = 1
	StateError State = 3 // every WQE is flushed
)

func (s State) String() string {
	switch s {
	case StateReset:
		return "RST"
	case StateReady:
		return "RDY"
	case StateError:
		return "ERR"
	}
	return "invalid"
}

// checkTransition refuses the transitions that the device refuses: a wrong current state, an
// unknown state, and ERR to RDY without RST between.
func checkTransition(kind string, number uint32, real, cur, next State) error {
	if cur != real {
		return errorf(StatusBadState, "%s %#x is in state %v, not %v", kind, number, real, cur)
	}
	if next != StateReset && next != StateReady && next != StateError ||
		real == StateError && next == StateReady {
		return errorf(StatusBadState, "%s %#x from state %v to %v", kind, number, real, next)
	}
	return nil
}

// checkRing refuses a ring that is not 1<<logEntries entries of entrySize bytes
// in memory, or a doorbell record that is not 8 aligned bytes.
func checkRing(kind string, ring, record *Memory, logEntries, maxLog, entrySize int) error {
	if logEntries < 0 || logEntries > maxLog {
		return errorf(StatusBadParam, "%s of 2^%d entries (at most 2^%d)", kind, logEntries, maxLog)
	}
	need := uint64(entrySize) << logEntries
	if ring == nil || ring.Len() < need {
		return errorf(StatusBadParam, "%s of 2^%d entries of %d bytes without memory for it",
			kind, logEntries, entrySize)
	}
	if record == nil || len(record.Slice(0, 8)) != 8 {
		return errorf(StatusBadParam, "%s without a doorbell record of 8 bytes", kind)
	}
	return nil
}
