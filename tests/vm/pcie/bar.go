package pcie

import "encoding/binary"

// barSize is BAR 0: the initialisation segment in the first 64 KiB, then the UAR pages.
const barSize = 32 << 20

// Initialisation segment, big-endian words (linux include/linux/mlx5/device.h, struct
// mlx5_init_seg).
const (
	segFirmware     = 0x0000
	segCommandRev   = 0x0004
	segCmdQueueHigh = 0x0010
	segCmdQueueLow  = 0x0014
	segDoorbell     = 0x0018
	segInitializing = 0x01fc
	segSeverity     = 0x0238 // health buffer: recovery flag in the top bit
	segHardwareID   = 0x023c // its low three bytes: syndrome, extended syndrome
	segTimerHigh    = 0x1000
	segTimerLow     = 0x1004
	segHealth       = 0x1010
	segRealTimeHigh = 0x1040
	segRealTimeLow  = 0x1044
)

// UAR pages: 4 KiB each, number n at n<<12; the first number that is allocated lies above the
// initialisation segment.
const (
	uarShift = 12
	firstUAR = 16
)

// Event queue registers of a UAR page, 4 bytes each (linux
// drivers/net/ethernet/mellanox/mlx5/core/lib/eq.h).
const (
	uarEQArm    = 0x40
	uarEQUpdate = 0x48
)

// commandRevision is the revision of the command interface.
const commandRevision = 5

// logCmdEntries and logCmdStride describe the command queue: 32 entries of 64 bytes.
const logCmdEntries, logCmdStride = 5, 6

// States of the driver's interface (bits 8 to 10 of segCmdQueueLow): in use, disabled, and firmware
// reset requested. Bit 30 of segInitializing says that the driver may request a reset.
const (
	interfaceShift = 8
	interfaceMask  = 7
	interfaceOff   = 1
	interfaceReset = 7

	resetSupported = 1 << 30
)

// readBAR executes a load of any size from BAR 0.
func (f *Function) readBAR(off uint64, p []byte) {
	var word [4]byte
	for len(p) > 0 {
		binary.BigEndian.PutUint32(word[:], f.segmentWord(off&^3))
		n := copy(p, word[off&3:])
		p, off = p[n:], off+uint64(n)
	}
}

// Contents of the health buffer of a failed device (linux include/linux/mlx5/device.h, struct
// health_buffer and drivers/net/ethernet/mellanox/mlx5/core/health.c): an internal error, after
// which the firmware requests a reset.
const (
	healthReset = 1 << 31
	healthError = 0x01 << 16
)

// segmentWord is one word of the initialisation segment.
func (f *Function) segmentWord(off uint64) uint32 {
	fw := f.nic.Card().Firmware
	switch off {
	case segFirmware:
		return uint32(fw[1])<<16 | uint32(fw[0])
	case segCommandRev:
		return commandRevision<<16 | uint32(fw[2])
	case segCmdQueueHigh:
		return uint32(f.cmdQueue >> 32)
	case segCmdQueueLow:
		return uint32(f.cmdQueue)&^0xfff | f.nicInterface<<interfaceShift |
			logCmdEntries<<4 | logCmdStride
	case segInitializing:
		return resetSupported
	case segTimerHigh:
		return uint32(f.nic.Now() >> 32)
	case segTimerLow:
		return uint32(f.nic.Now())
	case segRealTimeHigh:
		return uint32(f.nic.RealTime() >> 32)
	case segRealTimeLow:
		return uint32(f.nic.RealTime())
	case segSeverity:
		return uint32(flag(f.fatal.Load())) * healthReset
	case segHardwareID:
		return uint32(flag(f.fatal.Load())) * healthError
	case segHealth:
		f.health++ // if it does not change, the driver takes the firmware for dead
		return f.health
	}
	return 0
}

// writeBAR executes a store to BAR 0.
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
		f.setInterface(v >> interfaceShift & interfaceMask)
	case segDoorbell:
		f.runCommands(v)
	}
}

// setInterface sets the state of the interface that the driver requests. A reset makes a failed
// device work again; the interface is then disabled until the driver starts it.
func (f *Function) setInterface(v uint32) {
	if f.nicInterface = v; v != interfaceReset {
		return
	}
	f.log.Warn("firmware reset")
	f.resetFirmware()
	f.nicInterface = interfaceOff
}

// writeUAR executes a store to a UAR page: this package handles event queues, the core handles
// completion queues and send queues.
func (f *Function) writeUAR(page uint32, off int, p []byte) {
	switch {
	case (off == uarEQArm || off == uarEQUpdate) && len(p) == 4:
		w := binary.BigEndian.Uint32(p)
		f.updateEQ(w>>24, w&0xffffff, off == uarEQArm)
	case len(p) >= 8:
		f.nic.UARWriteLate(page, off, binary.BigEndian.Uint64(p))
	}
}
