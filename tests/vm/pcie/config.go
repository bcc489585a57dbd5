package pcie

import "encoding/binary"

// configSize is the extended configuration space of a PCI Express function, in bytes.
const configSize = 4096

// Offsets of configuration space (PCI Express Base Specification 7.5.1, linux
// include/uapi/linux/pci_regs.h).
const (
	pciVendor       = 0x00
	pciDevice       = 0x02
	pciCommand      = 0x04
	pciStatus       = 0x06
	pciRevision     = 0x08
	pciClass        = 0x0a
	pciCacheLine    = 0x0c
	pciBAR0         = 0x10
	pciSubVendor    = 0x2c
	pciSubDevice    = 0x2e
	pciCapabilities = 0x34
	pciInterrupt    = 0x3c
	capExpress      = 0x60
	capMSIX         = 0x9c
)

const (
	vendorMellanox = 0x15b3
	msixTable      = 0x2000 // in BAR 0, as on the cards; the monitor overlays it
	msixPBA        = 0x3000
)

// configSpace is the function's PCI configuration space. Writes change only the bits in writable;
// the client implements sizing of the BAR.
type configSpace struct {
	b        [configSize]byte
	writable [configSize]byte // bits a write may change
}

// newConfigSpace describes an Ethernet controller of the given PCI device id with one
// 64-bit prefetchable BAR, a PCI Express capability (function-level reset, gen 3 x8) and
// MSI-X.
func newConfigSpace(device uint16) *configSpace {
	c := &configSpace{}
	c.u16(pciVendor, vendorMellanox)
	c.u16(pciDevice, device)
	c.u16(pciStatus, 0x10) // has capabilities
	c.u16(pciClass, 0x0200)
	c.u32(pciBAR0, 0x0c) // memory, 64 bit, prefetchable
	c.u16(pciSubVendor, vendorMellanox)
	c.u16(pciSubDevice, 0x0016)
	c.b[pciCapabilities] = capExpress
	c.b[pciInterrupt+1] = 1
	c.express()
	c.msix()
	c.allow(pciCommand, 2)
	c.allow(pciCacheLine, 4)
	c.allow(pciInterrupt, 2)
	c.allow(expressControl, 2)
	c.allow(capMSIX+2, 2)
	return c
}

// express fills the PCI Express capability (7.5.3).
func (c *configSpace) express() {
	c.b[capExpress], c.b[capExpress+1] = 0x10, capMSIX
	c.u16(capExpress+2, 0x0002)          // version 2, endpoint
	c.u32(capExpress+4, 1<<28|1<<15|0x2) // FLR, role-based error reporting, payload 512 bytes
	c.u32(capExpress+0x0c, 0x83)         // link: gen 3, x8
	c.u16(capExpress+0x12, 0x83)
}

// msix fills the MSI-X capability (7.7.2).
func (c *configSpace) msix() {
	c.b[capMSIX] = 0x11
	c.u16(capMSIX+2, numVectors-1)
	c.u32(capMSIX+4, msixTable)
	c.u32(capMSIX+8, msixPBA)
}

func (c *configSpace) u16(off int, v uint16) { binary.LittleEndian.PutUint16(c.b[off:], v) }
func (c *configSpace) u32(off int, v uint32) { binary.LittleEndian.PutUint32(c.b[off:], v) }

func (c *configSpace) allow(off, n int) {
	for i := range n {
		c.writable[off+i] = 0xff
	}
}

// read copies configuration space at off; bytes beyond its end read as ones, as on a bus without a
// function.
func (c *configSpace) read(off uint64, p []byte) {
	for i := range p {
		p[i] = 0xff
		if a := off + uint64(i); a < configSize {
			p[i] = c.b[a]
		}
	}
}

// Initiate function-level reset, in the second byte of device control (PCI Express Base
// Specification 7.5.3.4). It always reads 0.
const (
	expressControl = capExpress + 8
	initiateFLR    = 0x80
)

// takeReset reports whether the last write has asked for a function-level reset.
func (c *configSpace) takeReset() bool {
	asked := c.b[expressControl+1]&initiateFLR != 0
	c.b[expressControl+1] &^= initiateFLR
	return asked
}

// write changes the bits a driver may change.
func (c *configSpace) write(off uint64, p []byte) {
	for i, v := range p {
		if a := off + uint64(i); a < configSize {
			c.b[a] = c.b[a]&^c.writable[a] | v&c.writable[a]
		}
	}
}
