package simnic

import "time"

// TimestampCap is the time stamps that a device has, in the numbers of its capabilities
// (sq_ts_format and rq_ts_format).
type TimestampCap uint8

// Time stamps of a device.
const (
	StampsFreeRunning TimestampCap = 0
	StampsRealTime    TimestampCap = 1
	StampsBoth        TimestampCap = 2
)

// TimestampFormat is the time stamps in the completions of a queue, in the numbers of its context
// (ts_format).
type TimestampFormat uint8

// Formats of time stamps. The default one is real time only where the device has nothing else
// (model's choice).
const (
	FreeRunning   TimestampFormat = 0 // NIC.Now
	DefaultStamps TimestampFormat = 1
	RealTime      TimestampFormat = 2 // NIC.RealTime
)

// sinceStart returns the time since the start.
func (n *NIC) sinceStart() time.Duration { return n.clock.Since(n.start) }

// Now returns the free-running counter that stamps completions, in ticks of Caps.FrequencyKHz.
func (n *NIC) Now() uint64 { return n.ticksOf(n.sinceStart()) }

func (n *NIC) ticksOf(passed time.Duration) uint64 {
	ns, khz := uint64(passed), uint64(n.caps.FrequencyKHz)
	if khz == 1000000 {
		return ns
	}
	return ns/1000000*khz + ns%1000000*khz/1000000
}

// RealTime is wall time by Config.Clock: seconds since 1970 in the upper half, nanoseconds in the
// lower.
func (n *NIC) RealTime() uint64 { return n.realTime(n.sinceStart()) }

func (n *NIC) realTime(passed time.Duration) uint64 {
	t := n.start.Add(passed)
	return uint64(t.Unix())<<32 | uint64(t.Nanosecond())
}

// stampAt returns a time after the start in a format.
func (n *NIC) stampAt(f TimestampFormat, passed time.Duration) uint64 {
	if f == RealTime || f == DefaultStamps && n.caps.Timestamps == StampsRealTime {
		return n.realTime(passed)
	}
	return n.ticksOf(passed)
}

// checkStamps refuses formats that the device lacks. The field is reserved on a device with the
// free-running clock alone.
func (n *NIC) checkStamps(f TimestampFormat) error {
	have := n.caps.Timestamps
	if f > RealTime || f == FreeRunning && have == StampsRealTime ||
		f != FreeRunning && have == StampsFreeRunning {
		return statusErrorf(StatusBadParam, "time stamps of format %d on a device that has %d", f,
			have)
	}
	return nil
}
