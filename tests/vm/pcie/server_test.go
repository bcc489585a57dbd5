package pcie

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHandshakeAndRegions(t *testing.T) {
	c, _, _ := newClient(t)
	errno, p := c.call(cmdVersion, append([]byte{0, 0, 0, 0}, "{}\x00"...))
	if errno != 0 || !bytes.HasPrefix(p, []byte{0, 0, 0, 0, '{'}) || p[len(p)-1] != 0 {
		t.Fatalf("version: errno %d, %q", errno, p)
	}
	if _, p := c.call(cmdGetInfo, words(16)); !bytes.Equal(p, words(16, 3, 9, 5)) {
		t.Errorf("device info % x", p)
	}
	for region, size := range map[uint32]uint32{regionBAR0: barSize, 1: 0,
		regionConfig: configSize} {
		if _, p := c.call(cmdGetRegionInfo,
			words(32, 0, region)); binary.LittleEndian.Uint32(p[16:]) != size {
			t.Errorf("region %d: size %d, want %d", region,
				binary.LittleEndian.Uint32(p[16:]), size)
		}
	}
	if errno, _ := c.call(99, nil); errno != uint32(unix.ENOSYS) {
		t.Errorf("unknown command: errno %d, want ENOSYS", errno)
	}
}

func TestConfigSpace(t *testing.T) {
	c, _, _ := newClient(t)
	_, p := c.call(cmdRegionRead, access(regionConfig, 0, 4))
	if got := binary.LittleEndian.Uint32(p[16:]); got != 0x101d<<16|vendorMellanox {
		t.Fatalf("vendor and device %#x", got)
	}
	write := func(off uint64, v uint16) {
		c.call(cmdRegionWrite, binary.LittleEndian.AppendUint16(access(regionConfig, off, 2), v))
	}
	write(pciVendor, 0)
	write(pciCommand, 0x0406)
	_, p = c.call(cmdRegionRead, access(regionConfig, 0, 8))
	if v, cmd := binary.LittleEndian.Uint16(p[16:]),
		binary.LittleEndian.Uint16(p[20:]); v != vendorMellanox || cmd != 0x0406 {
		t.Errorf("vendor %#x, command %#x after writes", v, cmd)
	}
}

func TestInitialisationSegment(t *testing.T) {
	c, _, _ := newClient(t)
	if got := binary.BigEndian.Uint32(c.load(segFirmware, 4)); got != 43<<16|22 {
		t.Errorf("firmware revision %#x", got)
	}
	if a, b := c.load(segHealth, 4), c.load(segHealth, 4); bytes.Equal(a, b) {
		t.Error("the health counter stands still")
	}
	if got := binary.BigEndian.Uint32(c.load(segInitializing, 4)); got>>31 != 0 {
		t.Errorf("still initialising: %#x", got)
	}
}

func TestBadMessages(t *testing.T) {
	tests := []struct {
		name string
		cmd  command
		body []byte
	}{
		{"DMA map too short", cmdDMAMap, words(32, 3)},
		{"DMA map of nothing", cmdDMAMap, dmaMapBody(0, 0, 3)},
		{"DMA map around the end of the address space", cmdDMAMap, dmaMapBody(1<<63, 1<<63+1, 3)},
		{"read too large", cmdRegionRead, access(regionBAR0, 0, maxTransfer+1)},
		{"read of no region", cmdRegionRead, access(3, 0, 4)},
		{"write longer than its message", cmdRegionWrite, access(regionBAR0, 0, 4)},
		{"interrupts beyond the last", cmdSetIRQs, words(20, 0x24, irqMSIX, numVectors-1, 2)},
	}
	c, _, _ := newClient(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if errno, _ := c.call(tt.cmd, tt.body); errno != uint32(unix.EINVAL) {
				t.Errorf("errno %d, want EINVAL", errno)
			}
		})
	}
}
