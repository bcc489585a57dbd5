package dv

import (
	"math/bits"
	"time"
)

// Clock turns Packet.Timestamp into time. It follows the NIC's clock from one known moment on: the
// error is that of the moment, and grows with the NIC's drift against the system's clock, so Set it
// anew every now and then. Not safe for concurrent use while it is set.
type Clock struct {
	khz   uint64
	mask  uint64 // valid bits of a time stamp
	real  bool   // time stamps are wall time
	ticks uint64
	at    time.Time
}

// Clock returns a clock of the device that is not set. With Caps.RealTimeStamps it is the NIC's
// wall time until it is set, which is right if somebody synchronises the NIC (phc2sys, ptp4l). ok
// is false if the kernel does not tell the clock's rate.
func (d *Device) Clock() (c Clock, ok bool) {
	caps := d.context.Caps()
	if d.caps.RealTimeStamps {
		return Clock{real: true, at: wallTime(0)}, true
	}
	c = Clock{khz: caps.CoreClockKHz, mask: caps.TimestampMask}
	if c.mask == 0 {
		c.mask = ^uint64(0)
	}
	return c, c.khz != 0
}

// Set says that the time stamp ticks was taken at the time at: for one, that of
// a frame received just now.
func (c *Clock) Set(ticks uint64, at time.Time) { c.ticks, c.at = ticks, at }

// Time says when the time stamp ticks was taken: up to half the counter's range
// before or after the moment it was set to.
func (c *Clock) Time(ticks uint64) time.Time {
	if c.real {
		return c.at.Add(wallTime(ticks).Sub(wallTime(c.ticks)))
	}
	after := (ticks - c.ticks) & c.mask
	if after > c.mask/2 {
		return c.at.Add(-c.tickSpan((c.ticks - ticks) & c.mask))
	}
	return c.at.Add(c.tickSpan(after))
}

// wallTime returns a time stamp of the real-time format.
func wallTime(stamp uint64) time.Time {
	return time.Unix(int64(stamp>>32), int64(uint32(stamp)))
}

// tickSpan returns how long n ticks are; at most as long as a Duration can be.
func (c *Clock) tickSpan(n uint64) time.Duration {
	hi, lo := bits.Mul64(n, 1e6)
	if c.khz == 0 || hi >= c.khz {
		return 1<<63 - 1
	}
	ns, _ := bits.Div64(hi, lo, c.khz)
	return time.Duration(min(ns, 1<<63-1))
}

// VLANTag returns the tag control information of TxPacket.VLAN and Packet.VLAN for a
// priority (PCP, 0 to 7) and a VLAN number (12 bits).
func VLANTag(priority uint8, id uint16) uint16 {
	return uint16(priority&7)<<13 | id&0xfff
}
