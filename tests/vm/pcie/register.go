package pcie

import "github.com/rdma-netstack/rdma-netstack/simnic"

// Access registers, reached through ACCESS_REG (linux include/linux/mlx5/driver.h, enum of
// MLX5_REG_*).
const (
	regPMTU      = 0x5003
	regPTYS      = 0x5004
	regPAOS      = 0x5006
	regPPCNT     = 0x5008
	regNodeDesc  = 0x6001
	regHostEndia = 0x7004
)

// registerData is the offset of a register's contents in the command.
const registerData = 16

// Register fields (linux include/linux/mlx5/mlx5_ifc.h, ptys_reg, pmtu_reg, paos_reg).
var (
	registerID    = field{80, 16}
	ptysCap       = field{96, 32}
	ptysAdmin     = field{192, 32}
	ptysOper      = field{288, 32}
	ptysConnector = field{380, 4}
	pmtuMax       = field{32, 16}
	pmtuAdmin     = field{64, 16}
	pmtuOper      = field{96, 16}
	paosAdmin     = field{20, 4}
	paosOper      = field{28, 4}
	ppcntGroup    = field{26, 6}
)

// Port speeds as bits of PTYS: 25GBASE-CR is 28, 40GBASE-CR4 is 12.
const ptysSpeeds, ptysNow = 1<<28 | 1<<12, 1 << 28

// Administrative and operational port states of PAOS.
const (
	paosUp   = 1
	paosDown = 2
)

// maxFrame is the largest port MTU, with Ethernet header, one tag and FCS.
const maxFrame = 10000

// accessRegister reads (op_mod 1) or writes (op_mod 0) a register. A register that the model does
// not have is echoed.
func (f *Function) accessRegister(in, out []byte) error {
	copy(out[registerData:], in[registerData:])
	data := out[registerData:]
	read := opMod(in) == 1
	switch registerID.get(in) {
	case regPTYS:
		ptysCap.set(data, ptysSpeeds)
		ptysAdmin.set(data, ptysSpeeds)
		ptysOper.set(data, ptysNow)
		ptysConnector.set(data, 3)
	case regPMTU:
		if !read {
			f.setPortMTU(int(pmtuAdmin.get(in[registerData:])))
		}
		pmtuMax.set(data, maxFrame)
		pmtuAdmin.set(data, uint64(f.portMTU))
		pmtuOper.set(data, uint64(f.portMTU))
	case regPAOS:
		if !read {
			f.setPortAdmin(uint32(paosAdmin.get(in[registerData:])))
		}
		paosAdmin.set(data, uint64(f.portAdmin))
		paosOper.set(data, uint64(f.portState()))
	case regPPCNT:
		f.portCounters(data)
	default:
		f.information(registerID.get(in), data, read)
	}
	return nil
}

// setPortAdmin sets the port up or down; the driver gets an event when that changes its state. A
// virtual function cannot change it.
func (f *Function) setPortAdmin(v uint32) {
	if v == f.portAdmin || v != paosUp && v != paosDown {
		return
	}
	f.portAdmin = v
	if f.nic.Config().Function.Kind != simnic.VF {
		f.nic.SetLink(v == paosUp)
	}
}

// portState is the operational state in PAOS.
func (f *Function) portState() uint32 {
	if f.nic.Link() {
		return paosUp
	}
	return paosDown
}
