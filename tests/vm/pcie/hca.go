package pcie

import "encoding/binary"

// Commands of the function itself: bring-up, pages, capabilities, teardown.

// issi: interface steps 0 and 1 are supported; the driver uses the highest that both sides support.
var (
	currentISSI   = field{80, 16}
	supportedISSI = field{864, 32}
)

func (f *Function) enableHCA(_, _ []byte) error {
	f.enabled = true
	return nil
}

func (f *Function) disableHCA(_, _ []byte) error {
	f.enabled = false
	return nil
}

func (f *Function) queryISSI(_, out []byte) error {
	currentISSI.set(out, uint64(f.issi))
	supportedISSI.set(out, 3)
	return nil
}

func (f *Function) setISSI(in, _ []byte) error {
	v := currentISSI.get(in)
	if v > 1 {
		return errorf(statusBadParam, "interface step %d, want 0 or 1", v)
	}
	f.issi = int(v)
	return nil
}

// Pages that the device requests from the driver, at boot and at INIT_HCA. The model keeps its
// state in Go and does not use them. It accepts them because the driver requires it, and returns
// them.
const (
	bootPages = 8
	initPages = 16
)

// Operation modifiers of QUERY_PAGES and MANAGE_PAGES.
const (
	pagesBoot   = 1
	pagesInit   = 2
	pagesCannot = 0
	pagesGive   = 1
	pagesTake   = 2
)

func opMod(in []byte) uint16 { return binary.BigEndian.Uint16(in[6:]) }

func (f *Function) queryPages(in, out []byte) error {
	n := 0
	switch opMod(in) {
	case pagesBoot:
		n = bootPages
	case pagesInit:
		n = initPages
	}
	binary.BigEndian.PutUint32(out[12:], uint32(n))
	return nil
}

func (f *Function) managePages(in, out []byte) error {
	count := int(be32(in, 12))
	switch opMod(in) {
	case pagesCannot:
		return nil
	case pagesGive:
		if len(in) < 16+8*count {
			return errorf(statusBadInput, "%d pages in %d bytes", count, len(in))
		}
		if len(f.given)+count > maxNumbers {
			return errorf(statusLimit, "%d pages more than the %d that are here", count,
				len(f.given))
		}
		f.given = append(f.given, addresses(in[:16+8*count], 16)...)
		return nil
	case pagesTake:
		n := min(count, len(f.given), (len(out)-16)/8)
		for i := range n {
			binary.BigEndian.PutUint64(out[16+8*i:], f.given[len(f.given)-1-i])
		}
		f.given = f.given[:len(f.given)-n]
		binary.BigEndian.PutUint32(out[8:], uint32(n))
		return nil
	}
	return errorf(statusBadParam, "page operation %d", opMod(in))
}

func (f *Function) initHCA(_, _ []byte) error {
	if !f.enabled {
		return errorf(statusBadState, "INIT_HCA before ENABLE_HCA")
	}
	return nil
}

// teardownHCA ends the driver's use of the function: what the driver left behind is destroyed.
func (f *Function) teardownHCA(_, _ []byte) error {
	f.abandoned = f.resources()
	delete(f.abandoned, pageCount)
	f.releaseAll()
	return nil
}

// queryHCACap answers capability group op_mod>>1; bit 0 asks for current instead of
// maximum values, which are the same.
func (f *Function) queryHCACap(in, out []byte) error {
	clear(out[16:])
	switch opMod(in) >> 1 {
	case capGeneral:
		copy(out[16:], f.general)
	case capEthernet:
		setCaps(out[16:], f.ethernetCaps())
	case capFlowTable:
		f.flowTableCaps(out[16:])
	case capQoS:
		setCaps(out[16:], f.pacingCaps())
	}
	return nil
}

// setHCACap stores the general capabilities that the driver chose.
func (f *Function) setHCACap(in, _ []byte) error {
	if opMod(in)>>1 == capGeneral {
		copy(f.general, in[16:])
	}
	return nil
}

// adapterVendor is ieee_vendor_id of query_adapter_param_block: the OUI 00-02-C9.
var adapterVendor = field{8 * 25, 24}

// queryAdapter executes QUERY_ADAPTER: vendor and board id.
func (f *Function) queryAdapter(_, out []byte) error {
	adapterVendor.set(out[16:], 0x0002c9)
	copy(out[len(out)-16:], boardID)
	return nil
}

// boardID is the parameter-set id that a driver shows as board_id; SIM marks the model.
const boardID = "SIM0000000001"

// accepted executes a command whose reply is only success.
func (f *Function) accepted(_, _ []byte) error { return nil }

// ALLOC_UAR and the allocations of plain numbers: protection and transport domains, XRC
// domains, counters.

func (f *Function) allocUAR(_, out []byte) error {
	n, err := f.numbers[kindUAR].alloc(firstUAR)
	if err != nil {
		return err
	}
	if n >= barSize>>uarShift {
		f.numbers[kindUAR].give(n)
		return errorf(statusLimit, "all %d UAR pages are in use", barSize>>uarShift-firstUAR)
	}
	number.set(out, uint64(n))
	return nil
}

// alloc returns a command that allocates a number of its kind, and free one that frees it.
func alloc(k numberKind) func(*Function, []byte, []byte) error {
	return func(f *Function, _, out []byte) error {
		n, err := f.numbers[k].alloc(1)
		number.set(out, uint64(n))
		return err
	}
}

func free(k numberKind) func(*Function, []byte, []byte) error {
	return func(f *Function, in, _ []byte) error {
		if !f.numbers[k].give(number.u32(in)) {
			return errorf(statusBadResource, "number %d is not allocated", number.u32(in))
		}
		return nil
	}
}
