package main

import (
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/xdp"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// openXDP redirects everything that the interface receives on queue 0 to an AF_XDP socket. Program
// and map live as long as the process.
func openXDP(native bool) (gstack.LinkEndpoint, error) {
	ifc, err := net.InterfaceByName(port)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("AF_XDP socket: %w", err)
	}
	ep, err := xdp.New(&xdp.Options{
		FD: fd, Address: tcpip.LinkAddress(serverMAC), InterfaceIndex: ifc.Index,
		Bind: true, RXChecksumOffload: true,
	})
	if err != nil {
		return nil, err
	}
	if err := redirect(ifc.Index, fd, native); err != nil {
		return nil, fmt.Errorf("attach XDP program: %w", err)
	}
	return ep, nil
}

// redirect attaches "return bpf_redirect_map(&sockets, queue 0, XDP_PASS)".
func redirect(ifindex, socket int, native bool) error {
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4,
		ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	if err := sockets.Put(uint32(0), uint32(socket)); err != nil {
		return err
	}
	const pass = 2
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMapPtr(asm.R1, sockets.FD()),
			asm.Mov.Imm(asm.R2, 0),
			asm.Mov.Imm(asm.R3, pass),
			asm.FnRedirectMap.Call(),
			asm.Return(),
		}})
	if err != nil {
		return err
	}
	mode := link.XDPGenericMode
	if native {
		mode = link.XDPDriverMode
	}
	attached, err := link.AttachXDP(link.XDPOptions{Program: program,
		Interface: ifindex, Flags: mode})
	if err == nil {
		alive = append(alive, attached, sockets, program)
	}
	return err
}

// alive keeps the program from garbage collection: its finalizer would detach it.
var alive []any
