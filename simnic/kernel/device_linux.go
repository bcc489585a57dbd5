package kernel

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// queryDevice implements QUERY_DEVICE.
func queryDevice(c *call) unix.Errno {
	if errno := c.node.checkContext(); errno != 0 {
		return errno
	}
	var response uint64
	if errno := c.readRequest(&response); errno != 0 {
		return errno
	}
	return c.writeReply(c.node.deviceAttr())
}

// exQueryDevice returns the extended QUERY_DEVICE, with the driver's part.
func exQueryDevice(c *call) unix.Errno {
	if errno := c.node.checkContext(); errno != 0 {
		return errno
	}
	var req uverbs.ExQueryDeviceReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.CompMask != 0 || req.Reserved != 0 {
		return unix.EINVAL
	}
	if errno := c.driverCaps(); errno != 0 {
		return errno
	}
	resp := c.node.deviceCaps()
	resp.ResponseLength = c.responseLength(resp)
	return c.writeReply(resp)
}

// deviceAttr returns the device attributes that every kernel returns.
func (n *node) deviceAttr() uverbs.QueryDeviceResp {
	caps, fw := n.nic.Caps(), n.nic.Card().Firmware
	guid := uverbs.ToBE64(n.nic.GUID())
	return uverbs.QueryDeviceResp{
		FwVer:          uint64(fw[0])<<32 | uint64(fw[1])<<16 | uint64(fw[2]),
		NodeGUID:       guid,
		SysImageGUID:   guid,
		MaxMRSize:      ^uint64(0),
		PageSizeCap:    0xfffffffffffff000,
		VendorID:       0x02c9,
		VendorPartID:   uint32(n.nic.DeviceID()),
		MaxQP:          1 << 18,
		MaxQPWR:        1 << caps.LogMaxQueue,
		DeviceCapFlags: uint32(n.deviceFlags()),
		MaxSGE:         30,
		MaxSGERd:       30,
		MaxCQ:          1 << 24,
		MaxCQE:         1<<caps.LogMaxCQ - 1,
		MaxMR:          1 << 24,
		MaxPD:          1 << 23,
		MaxPkeys:       128,
		PhysPortCnt:    1,

		// limits of RDMA, which the model does not implement
		MaxQPRdAtom: 16, MaxQPInitRdAtom: 16, MaxResRdAtom: 1 << 22,
		MaxMcastGrp: 1, MaxAH: 1<<31 - 1, MaxSRQ: 1 << 16, MaxSRQWR: 1<<15 - 1, MaxSRQSGE: 31,
	}
}

// alwaysFlags holds the flags that the driver sets for every device: change of port, port events,
// system image GUID, RNR NAK, XRC.
const alwaysFlags = 0x101c20

// carriesEthernet reports whether the port carries Ethernet; otherwise the driver returns no raw
// packet capabilities.
func (n *node) carriesEthernet() bool { return !n.linux.cfg.InfiniBand }

func (n *node) deviceFlags() uint64 {
	caps := n.nic.Caps()
	flags := uverbs.DevCapManagedFlowSteering | alwaysFlags
	if n.carriesEthernet() {
		flags |= uverbs.DevCapRawIPCsum
	}
	if n.carriesEthernet() && caps.ScatterFCS {
		flags |= uverbs.DevCapRawScatterFCS
	}
	if caps.EndPad {
		flags |= uverbs.DevCapPCIWriteEndPadding
	}
	return flags
}

// deviceCaps returns the capabilities that newer kernels return.
func (n *node) deviceCaps() uverbs.ExQueryDeviceResp {
	caps := n.nic.Caps()
	r := uverbs.ExQueryDeviceResp{
		Base:             n.deviceAttr(),
		TimestampMask:    0x7fffffffffffffff,
		HCACoreClock:     uint64(caps.FrequencyKHz),
		DeviceCapFlagsEx: n.deviceFlags(),
	}
	if caps.CQModeration {
		r.CQModerationCaps = uverbs.CQModerationCaps{MaxCount: maxModerationCount,
			MaxPeriod: maxModerationPeriod}
	}
	if !n.carriesEthernet() {
		return r
	}
	r.RSSCaps = uverbs.RSSCaps{SupportedQPTs: uverbs.RawPacketBit, MaxRWQIndirectionTables: 1 << 20,
		MaxRWQIndirectionTableSize: 1 << caps.LogMaxRQT}
	r.MaxWQTypeRQ = 1 << 20
	r.RawPacketCaps = uverbs.RawPacketCapIPCsum
	for _, f := range []struct {
		has bool
		bit uint32
	}{
		{caps.VLANStrip, uverbs.RawPacketCapCVLANStripping},
		{caps.ScatterFCS, uverbs.RawPacketCapScatterFCS},
		{caps.DelayDrop, uverbs.RawPacketCapDelayDrop},
	} {
		if f.has {
			r.RawPacketCaps |= f.bit
		}
	}
	return r
}

// Limits of event moderation: 16 bits of count, 12 of microseconds.
const (
	maxModerationCount  = 65535
	maxModerationPeriod = 4095
)

// driverCaps writes the driver's part of the reply, if requested (mlx5_ib_query_device in
// drivers/infiniband/hw/mlx5/main.c).
func (c *call) driverCaps() unix.Errno {
	out := c.uhw.out
	if out.n != 0 && out.n < 8 {
		return unix.EINVAL
	}
	if !c.uhw.in.zeroFrom(0) {
		return unix.EINVAL
	}
	if out.n == 0 {
		return 0
	}
	r := driverCaps{room: out.n, resp: make([]byte, uverbs.SizeOf(uverbs.Mlx5QueryDeviceResp{})),
		length: 8}
	r.fillCaps(c.node)
	binary.NativeEndian.PutUint32(r.resp[4:], uint32(r.length))
	return out.putAll(r.resp[:r.length])
}

// driverCaps holds the reply under construction. length is the sum of the parts written, so it is
// too short when a part in the middle is left out, as in linux.
type driverCaps struct {
	room, length int
	resp         []byte
}

// writePart writes v at its offset if the client has room for it and told is set.
func (d *driverCaps) writePart(off int, told bool, v any) {
	n := uverbs.SizeOf(v)
	if off+n > d.room || !told {
		return
	}
	uverbs.PutStruct(d.resp[off:], v)
	d.length += n
}

func (d *driverCaps) fillCaps(n *node) {
	caps, raw := n.nic.Caps(), n.carriesEthernet()
	d.writePart(8, raw && caps.MaxLSO > 0, uverbs.Mlx5TSOCaps{MaxTSO: uint32(caps.MaxLSO),
		SupportedQPTs: uverbs.RawPacketBit})
	d.writePart(16, raw, uverbs.Mlx5RSSCaps{RxHashFunction: uverbs.Mlx5HashToeplitz,
		RxHashFieldsMask: supportedHash | uverbs.HashInner})
	d.writePart(32, true, compressionCaps(caps))
	d.writePart(40, raw, pacingCaps(caps))
	d.writePart(56, raw, sendCaps(caps))
	d.writePart(60, true, uint32(scatterToDCT))
	d.writePart(64, true, uverbs.Mlx5SWParsingCaps{})
	d.writePart(72, raw, stridingCaps(caps))
	d.writePart(96, true, uint32(0))
	if !n.linux.isRelease(Linux54) {
		d.writePart(100, true, uint16(0))
		d.writePart(102, true, uint16(0))
		d.writePart(104, true, uint64(0))
	}
}

// scatterToDCT names a flag that the driver sets on every device
// (MLX5_IB_QUERY_DEV_RESP_FLAGS_SCAT2CQE_DCT).
const scatterToDCT = 8

func compressionCaps(caps simnic.Caps) (c uverbs.Mlx5CQECompCaps) {
	if !caps.Compression {
		return c
	}
	c.MaxNum = uint32(caps.MaxCompressed)
	for bit, f := range miniFormats {
		if caps.MiniFormats&(1<<f) != 0 {
			c.SupportedFormat |= uint32(bit)
		}
	}
	return c
}

func sendCaps(caps simnic.Caps) (flags uint32) {
	if caps.LegacyMPW {
		flags |= uverbs.Mlx5AllowMPW
	}
	if caps.EnhancedMPW {
		flags |= uverbs.Mlx5SupportEMPW
	}
	return flags
}

func pacingCaps(caps simnic.Caps) (p uverbs.Mlx5PacketPacingCaps) {
	if caps.Pacing.MaxKbps == 0 {
		return p
	}
	p = uverbs.Mlx5PacketPacingCaps{QPRateLimitMin: caps.Pacing.MinKbps,
		QPRateLimitMax: caps.Pacing.MaxKbps, SupportedQPTs: uverbs.RawPacketBit}
	if caps.Pacing.Burst {
		p.CapFlags = uverbs.Mlx5PacketPacingBurst
	}
	return p
}

func stridingCaps(caps simnic.Caps) (s uverbs.Mlx5StridingRQCaps) {
	if !caps.StridingRQ {
		return s
	}
	return uverbs.Mlx5StridingRQCaps{
		MinStrideBytes:  uint32(caps.LogMinStride),
		MaxStrideBytes:  uint32(caps.LogMaxStride),
		MinStridesInWQE: uint32(caps.LogMinStrides),
		MaxStridesInWQE: uint32(caps.LogMaxStrides),
		SupportedQPTs:   uverbs.RawPacketBit,
	}
}
