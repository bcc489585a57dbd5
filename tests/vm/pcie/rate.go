package pcie

import "github.com/rdma-netstack/rdma-netstack/simnic"

// Rates of send queues (linux include/linux/mlx5/mlx5_ifc.h, qos_cap, set_pp_rate_limit_in, sqc).
var (
	rateIndex   = field{80, 16}
	rateLimit   = field{128, 32} // kbit/s
	rateBurst   = field{160, 32} // bytes
	ratePacket  = field{208, 16} // bytes
	sqcRate     = field{240, 16}
	modifySQBit = uint64(1) // of modifySQBits: the rate changes

	modifySQBits = field{128, 64}
)

// sendRate holds an entry of the device's table of rates, and the user context whose queues may
// have it (packet_pacing_uid): 0 and sharedContext stand for all.
type sendRate struct {
	kbps, burst uint64
	context     uint32
}

// pacing returns which rates the function offers.
func (f *Function) pacing() (c simnic.PacingCap) {
	if f.cfg.Pacing {
		c = f.nic.Caps().Pacing
	}
	return c
}

// pacingCaps returns group 12. Entry 0 of the table stands for no limit.
func (f *Function) pacingCaps() []capValue {
	c := f.pacing()
	if c.MaxKbps == 0 {
		return nil
	}
	return []capValue{
		{"packet_pacing", field{0, 1}, 1},
		{"packet_pacing_burst_bound", field{5, 1}, flag(c.Burst)},
		{"packet_pacing_typical_size", field{6, 1}, flag(c.Burst)},
		{"packet_pacing_uid", field{11, 1}, flag(c.Contexts)},
		{"packet_pacing_max_rate", field{64, 32}, uint64(c.MaxKbps)},
		{"packet_pacing_min_rate", field{96, 32}, uint64(c.MinKbps)},
		{"packet_pacing_rate_table_size", field{144, 16}, uint64(c.Rates) + 1},
	}
}

// setRate executes SET_PP_RATE_LIMIT: it sets an entry of the table; a rate of 0 frees it.
func (f *Function) setRate(in, _ []byte) error {
	c, index, kbps := f.pacing(), uint16(rateIndex.get(in)), rateLimit.get(in)
	burst := rateBurst.get(in)
	switch {
	case c.MaxKbps == 0:
		return errorf(statusBadOp, "the function paces nothing")
	case index == 0 || int(index) > c.Rates:
		return errorf(statusBadParam, "rate %d, want 1 to %d", index, c.Rates)
	case kbps == 0:
		delete(f.objects.rates, index)
		return nil
	case kbps < uint64(c.MinKbps) || kbps > uint64(c.MaxKbps):
		return errorf(statusBadParam, "%d kbit/s, want %d to %d", kbps, c.MinKbps, c.MaxKbps)
	case !c.Burst && (burst != 0 || ratePacket.is(in)):
		return errorf(statusBadParam, "a burst, which the card does not take")
	case !c.Contexts && commandContext.is(in):
		return errorf(statusBadParam, "a rate for one user context, which the card does not keep")
	}
	f.objects.rates[index] = sendRate{kbps, burst, commandContext.u32(in)}
	return nil
}

// rateFor returns the rate that a command names for a send queue. Index 0 is no limit.
func (f *Function) rateFor(in []byte) (r sendRate, err error) {
	index := uint16(sqcRate.get(part(in, queueContext, queueContextSize)))
	r, known := f.objects.rates[index]
	switch uid := commandContext.u32(in); {
	case index != 0 && !known:
		return r, errorf(statusBadParam, "rate %d is not set", index)
	case r.context != 0 && r.context != sharedContext && r.context != uid:
		return r, errorf(statusBadParam, "rate %d is user context %d's, not %d's", index,
			r.context, uid)
	}
	return r, nil
}

// rateOf returns the rate that MODIFY_SQ gives a queue, and whether it gives one.
func (f *Function) rateOf(in []byte, next simnic.State) (r sendRate, given bool, err error) {
	if modifySQBits.get(in)&modifySQBit == 0 {
		return r, false, nil
	}
	r, err = f.rateFor(in)
	if err == nil && next != simnic.StateReady && r.kbps != 0 {
		err = errorf(statusBadState, "rate for a send queue that is to be %v", next)
	}
	return r, err == nil && next == simnic.StateReady, err
}
