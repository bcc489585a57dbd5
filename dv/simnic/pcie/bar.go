package pcie

import "encoding/binary"

// barSize is BAR 0: the initialisation segment in the first 64 KiB, UAR pages behind it.
const barSize = 32 << 20

// Initialisation segment, big-endian words (linux include/linux/mlx5/device.h, struct mlx5_init_seg).
const (
	segFirmware     = 0x0000
	segCommandRev   = 0x0004
	segCmdQueueHigh = 0x0010
	segCmdQueueLow  = 0x0014
	segDoorbell     = 0x0018
	segInitializing = 0x01fc
	segTimerHigh    = 0x1000
	segTimerLow     = 0x1004
	segHealth       = 0x1010
)

// UAR pages: 4 KiB each, number n at n<<12; the first number handed out leaves the initialisation segment free.
const (
	uarShift = 12
	firstUAR = 16
)

// Event queue registers of a UAR page, 4 bytes each (linux drivers/net/ethernet/mellanox/mlx5/core/lib/eq.h).
const (
	uarEQArm    = 0x40
	uarEQUpdate = 0x48
)

// Firmware revision shown to the driver: major.minor.subminor, and the command interface revision it needs.
const (
	firmwareMajor, firmwareMinor, firmwareSub = 22, 43, 2026
	commandRevision                           = 5
)

// logCmdEntries and logCmdStride describe the command queue: 32 entries of 64 bytes.
const logCmdEntries, logCmdStride = 5, 6

// readBAR answers a load from BAR 0. The driver loads aligned words; anything else reads zero.
func (f *Function) readBAR(off uint64, p []byte) {
	clear(p)
	for i := 0; i+4 <= len(p); i += 4 {
		binary.BigEndian.PutUint32(p[i:], f.segmentWord(off+uint64(i)))
	}
}

// segmentWord is one word of the initialisation segment.
func (f *Function) segmentWord(off uint64) uint32 {
	switch off {
	case segFirmware:
		return firmwareMinor<<16 | firmwareMajor
	case segCommandRev:
		return commandRevision<<16 | firmwareSub
	case segCmdQueueHigh:
		return uint32(f.cmdQueue >> 32)
	case segCmdQueueLow:
		return uint32(f.cmdQueue)&^0xfff | logCmdEntries<<4 | logCmdStride
	case segTimerHigh:
		return uint32(f.nic.Now() >> 32)
	case segTimerLow:
		return uint32(f.nic.Now())
	case segHealth:
		f.health++ // a counter that stands still means dead firmware to the driver
		return f.health
	}
	return 0
}

// writeBAR acts on a store to BAR 0.
func (f *Function) writeBAR(off uint64, p []byte) {
	if off >= firstUAR<<uarShift {
		f.writeUAR(uint32(off>>uarShift), int(off&(1<<uarShift-1)), p)
		return
	}
	if len(p) != 4 {
		return
	}
	v := binary.BigEndian.Uint32(p)
	switch off {
	case segCmdQueueHigh:
		f.cmdQueue = f.cmdQueue&0xffffffff | uint64(v)<<32
	case segCmdQueueLow:
		f.cmdQueue = f.cmdQueue&^0xffffffff | uint64(v&^0xfff)
	case segDoorbell:
		f.runCommands(v)
	}
}

// writeUAR acts on a store to a UAR page: event queues are ours, completion queues and send queues the core's.
func (f *Function) writeUAR(page uint32, off int, p []byte) {
	switch {
	case (off == uarEQArm || off == uarEQUpdate) && len(p) == 4:
		w := binary.BigEndian.Uint32(p)
		f.updateEQ(w>>24, w&0xffffff, off == uarEQArm)
	case len(p) >= 8:
		f.nic.UARWriteLate(page, off, binary.BigEndian.Uint64(p))
	}
}
