package pcie

import "encoding/binary"

// NIC vport context (linux include/linux/mlx5/mlx5_ifc.h, nic_vport_context, 264 bytes).
const (
	vportContextSize = 264
	vportQueryOut    = 16  // offset in the reply of QUERY_NIC_VPORT_CONTEXT
	vportModifyIn    = 256 // offset in MODIFY_NIC_VPORT_CONTEXT
)

var (
	vportMinInline  = field{5, 3}  // min_wqe_inline_mode
	vportNoLocalMC  = field{29, 1} // disable_mc_local_lb
	vportNoLocalUC  = field{30, 1} // disable_uc_local_lb
	vportMTU        = field{304, 16}
	vportSystemGUID = field{320, 64}
	vportPortGUID   = field{384, 64}
	vportNodeGUID   = field{448, 64}
	vportPromiscUC  = field{1920, 1}
	vportPromiscMC  = field{1921, 1}
	vportPromiscAll = field{1922, 1}
	vportListType   = field{1925, 3} // allowed_list_type
	vportListSize   = field{1936, 16}
	vportMACAddress = field{1968, 48} // the low 48 bits of permanent_address
)

// fieldSelect of MODIFY_NIC_VPORT_CONTEXT, the low bits: which parts the command changes.
var fieldSelect = field{96, 32}

const (
	selectLists   = 1 << 2
	selectPromisc = 1 << 4
	selectMTU     = 1 << 6
	selectLocalMC = 1 << 10
	selectLocalUC = 1 << 11
)

// vportList is the offset of the address list in the context; an address has 8 bytes, the last 6
// are the MAC.
const vportList = 256

// Values of allowed_list_type (linux include/linux/mlx5/device.h, MLX5_NVPRT_LIST_TYPE_*).
const (
	listUnicast   = 0
	listMulticast = 1
	listVLAN      = 2
)

// queryVport executes QUERY_NIC_VPORT_CONTEXT.
func (f *Function) queryVport(_, out []byte) error {
	ctx := out[vportQueryOut:]
	copy(ctx, f.vport[:])
	mac := make([]byte, 8)
	copy(mac[2:], f.nic.MAC())
	vportMACAddress.set(ctx, binary.BigEndian.Uint64(mac))
	guid := f.nic.GUID()
	vportSystemGUID.set(ctx, guid)
	vportPortGUID.set(ctx, guid)
	vportNodeGUID.set(ctx, guid)
	vportMTU.set(ctx, uint64(f.portMTU))
	vportMinInline.set(ctx, uint64(f.nic.Caps().MinInline))
	return nil
}

// modifyVport executes MODIFY_NIC_VPORT_CONTEXT.
func (f *Function) modifyVport(in, _ []byte) error {
	sel := fieldSelect.get(in)
	ctx := part(in, vportModifyIn, vportContextSize)
	if sel&selectMTU != 0 {
		f.setPortMTU(int(vportMTU.get(ctx)))
	}
	for _, part := range []struct {
		selected uint64
		field    field
	}{
		{selectPromisc, vportPromiscUC}, {selectPromisc, vportPromiscMC},
		{selectPromisc, vportPromiscAll},
		{selectLocalMC, vportNoLocalMC}, {selectLocalUC, vportNoLocalUC},
	} {
		if sel&part.selected != 0 {
			part.field.set(f.vport[:], part.field.get(ctx))
		}
	}
	f.nic.SetLoopback(!vportNoLocalUC.is(f.vport[:]), !vportNoLocalMC.is(f.vport[:]))
	f.nic.SetReceiveMode(vportPromiscAll.is(f.vport[:]), vportPromiscMC.is(f.vport[:]))
	if sel&selectLists != 0 {
		return f.setVportList(in[vportModifyIn:])
	}
	return nil
}

// setVportList sets the list of addresses that the netdev receives.
func (f *Function) setVportList(ctx []byte) error {
	kind, n := vportListType.get(ctx), int(vportListSize.get(ctx))
	limit, set := 1<<logUnicastList, f.nic.SetUnicastList
	switch kind {
	case listMulticast:
		limit, set = 1<<logMulticastList, f.nic.SetMulticastList
	case listVLAN:
		return nil // an e-switch in legacy mode ignores it
	}
	if kind > listVLAN || n > limit {
		return errorf(statusBadParam, "address list of type %d with %d entries", kind, n)
	}
	if len(ctx) < vportList+8*n {
		return errorf(statusBadInput, "%d addresses in %d bytes", n, len(ctx))
	}
	macs := make([][6]byte, n)
	for i := range macs {
		macs[i] = [6]byte(ctx[vportList+8*i+2:])
	}
	set(macs)
	return nil
}

// portOverhead is what the driver adds to the netdev's MTU to get the port's: Ethernet header, one
// tag, FCS.
const portOverhead = 22

// setPortMTU sets the port's MTU to the value that the driver writes.
func (f *Function) setPortMTU(bytes int) {
	f.portMTU = min(bytes, maxFrame)
	if mtu := f.portMTU - portOverhead; mtu >= 68 {
		f.nic.SetMTU(mtu)
	}
}

var (
	vportAdminState = field{120, 4}
	vportState      = field{124, 4}
)

// queryVportState executes QUERY_VPORT_STATE: the state is that of the port.
func (f *Function) queryVportState(_, out []byte) error {
	vportAdminState.set(out, 1)
	vportState.set(out, flag(f.nic.Link()))
	return nil
}
