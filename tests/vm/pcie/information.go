package pcie

// Registers that describe firmware and port (linux include/linux/mlx5/mlx5_ifc.h, pcam_reg and the
// like).
const (
	regPMLP = 0x5002 // module of the port
	regPPLM = 0x5023 // forward error correction
	regPCAM = 0x507f // port registers that exist
	regMCIA = 0x9014 // memory of a module
	regMCQS = 0x9060 // firmware components
	regMCQI = 0x9061 // one firmware component
	regMCAM = 0x907f // management registers that exist
)

// Fields of those registers.
var (
	camGroup     = field{24, 8}
	pcamPPLM     = field{64 + 92, 1}
	pcamPPCNT    = field{64 + 119, 1}
	mcamMCQI     = field{64 + 30, 1}
	mcamMCQS     = field{64 + 31, 1}
	pmlpWidth    = field{24, 8}
	mcqsLast     = field{0, 1}
	mcqsKind     = field{48, 16}
	mcqiKind     = field{91, 5}
	mcqiVersion  = field{192 + 32, 32}
	mcqsBootCode = uint64(1)
	mcqiVersions = uint64(1)
)

// information executes the read of a register of this file. Others are echoed.
func (f *Function) information(id uint64, data []byte, read bool) {
	switch id {
	case regPCAM, regMCAM:
		group := camGroup.get(data)
		clearAfter(data, 4)
		if group != 0 {
			return
		}
		for _, bit := range map[uint64][]field{regPCAM: {pcamPPLM, pcamPPCNT},
			regMCAM: {mcamMCQI, mcamMCQS}}[id] {
			bit.set(data, 1)
		}
	case regPMLP: // one lane, of module 0
		clearAfter(data, 4)
		pmlpWidth.set(data, 1)
	case regMCIA:
		readModule(data)
	case regPPLM:
		f.portFEC.access(data, read)
	case regMCQS:
		clearAfter(data, 4)
		mcqsLast.set(data, 1)
		mcqsKind.set(data, mcqsBootCode)
	case regMCQI:
		f.firmwareInformation(data)
	}
}

// clearAfter zeroes a register after its first n bytes, which select the information.
func clearAfter(data []byte, n int) { clear(data[min(n, len(data)):]) }

// firmwareInformation executes MCQI: the running firmware.
func (f *Function) firmwareInformation(data []byte) {
	if mcqiKind.get(data) != mcqiVersions {
		return
	}
	v := f.nic.Card().Firmware
	mcqiVersion.set(data, uint64(v[0])<<24|uint64(v[1])<<16|uint64(v[2]))
}

// Fields of MCIA: module, status, I2C address, page, address in the page, size.
var (
	mciaModule  = field{8, 8}
	mciaStatus  = field{24, 8}
	mciaI2C     = field{32, 8}
	mciaPage    = field{40, 8}
	mciaAddress = field{48, 16}
	mciaSize    = field{80, 16}
)

// Statuses of MCIA, its data, and the two addresses of a module of kind SFP.
const (
	mciaNoModule   = 0x02
	mciaNoPage     = 0x06
	mciaData       = 16
	mciaMaxData    = 48
	sfpIdentity    = 0x50
	sfpDiagnostics = 0x51
	sfpPage        = 256
)

// readModule executes MCIA: the only module is a copper cable. It has no diagnostic monitoring, so
// its second page is zero.
func readModule(data []byte) {
	n := min(int(mciaSize.get(data)), mciaMaxData)
	i2c, page, at := mciaI2C.get(data), mciaPage.get(data), int(mciaAddress.get(data))
	clearAfter(data, mciaData)
	status := uint64(0)
	switch {
	case mciaModule.get(data) != 0:
		status = mciaNoModule
	case i2c != sfpIdentity && i2c != sfpDiagnostics, page != 0, at+n > sfpPage:
		status = mciaNoPage
	case i2c == sfpIdentity && len(data) > mciaData:
		copy(data[mciaData:], sfpCable()[at:at+n])
	}
	mciaStatus.set(data, status)
}

// sfpCable is the identity of a passive copper cable for 25GBASE-CR of one metre (SFF-8472,
// table 4-1).
func sfpCable() []byte {
	b := make([]byte, sfpPage)
	b[0], b[1], b[2] = 0x03, 0x04, 0x21 // SFP, two-wire interface, copper pigtail
	b[8] = 0x04                         // passive cable
	b[12], b[66] = 0xff, 103            // 25.75 GBd in units of 250 MBd
	b[18] = 1                           // metres
	b[36] = 0x0b                        // 25GBASE-CR CA-L
	text := func(at, n int, s string) {
		for i := range n {
			b[at+i] = ' '
		}
		copy(b[at:at+n], s)
	}
	text(20, 16, "RDMA-NETSTACK")
	putU24(b[37:], 0x0002c9)
	text(40, 16, "SIM-SFP28-1M")
	text(56, 4, "A1")
	text(68, 16, boardID)
	text(84, 8, "260101")
	for i := range 63 {
		b[63] += b[i]
	}
	for i := 64; i < 95; i++ {
		b[95] += b[i]
	}
	return b
}

// Fields of PPLM for the speeds the port has: supported, requested by the driver, and active modes,
// as bits.
var (
	pplmActive  = field{104, 24}
	pplmCap40G  = field{156, 4}
	pplmCap25G  = field{152, 4}
	pplmWant40G = field{188, 4}
	pplmWant25G = field{184, 4}
)

// Kinds of forward error correction, as bits of PPLM.
const (
	fecNone     = 1 << 0
	fecFirecode = 1 << 1
	fecRS       = 1 << 2
)

// fecPolicy is the mode that the driver requests for each speed; with 0 the port chooses.
type fecPolicy struct{ at40G, at25G uint64 }

// access executes PPLM: a write stores the requested modes, and both return the register.
func (p *fecPolicy) access(data []byte, read bool) {
	if !read {
		p.at40G, p.at25G = pplmWant40G.get(data), pplmWant25G.get(data)
	}
	clearAfter(data, 4)
	active := uint64(fecRS) // for a cable of this length
	if p.at25G != 0 {
		active = p.at25G & -p.at25G
	}
	pplmActive.set(data, active)
	pplmCap40G.set(data, fecNone|fecFirecode)
	pplmCap25G.set(data, fecNone|fecFirecode|fecRS)
	pplmWant40G.set(data, p.at40G)
	pplmWant25G.set(data, p.at25G)
}
