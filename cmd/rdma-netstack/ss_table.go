package main

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// ssColumn is a column as ss of iproute2 has it (misc/ss.c, columns): addresses to the right, so
// that they meet their ports.
type ssColumn struct {
	delimiter, title string
	right            bool
}

var ssColumns = [...]ssColumn{{"", "Netid", false}, {" ", "State", false}, {" ", "Recv-Q", false},
	{" ", "Send-Q", false}, {" ", "Local Address:", true}, {"", "Port", false},
	{" ", "Peer Address:", true}, {"", "Port", false}, {" ", "Process", false}}

// ssRow is a socket's row, and the line below it.
type ssRow struct {
	cells [len(ssColumns)]string
	below string
}

func (f *ssFlags) row(s stack.Socket, process string) (r ssRow) {
	local, localPort := end(s.Local)
	peer, peerPort := end(s.Remote)
	r.cells = [...]string{s.Network, s.State, fmt.Sprint(s.RecvQ), fmt.Sprint(s.SendQ), local,
		localPort, peer, peerPort, process}
	if f.info {
		r.below = f.infoLine(s)
	}
	return r
}

// print prints the table. Netid is left out where there is one kind only, as ss does.
func (f *ssFlags) print(w io.Writer, all []stack.Socket, process string) error {
	var title ssRow
	for i, c := range ssColumns {
		title.cells[i] = c.title
	}
	rows := []ssRow{title}
	for _, s := range all {
		rows = append(rows, f.row(s, process))
	}
	first := 0
	if f.tcp != f.udp {
		first = 1
	}
	var width [len(ssColumns)]int
	for _, r := range rows {
		for i, cell := range r.cells {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	if f.noHeader {
		rows = rows[1:]
	}
	lines := bufio.NewWriterSize(w, 64<<10) // which keeps its first error
	for _, r := range rows {
		lines.WriteString(r.line(first, width))
		if r.below != "" {
			lines.WriteString("\n\t ")
			lines.WriteString(r.below)
		}
		lines.WriteByte('\n')
	}
	return lines.Flush()
}

// line is the row from column first on, without spaces at its end.
func (r *ssRow) line(first int, width [len(ssColumns)]int) string {
	var b strings.Builder
	for i := first; i < len(ssColumns); i++ {
		if i > first {
			b.WriteString(ssColumns[i].delimiter)
		}
		if ssColumns[i].right {
			fmt.Fprintf(&b, "%*s", width[i], r.cells[i])
		} else {
			fmt.Fprintf(&b, "%-*s", width[i], r.cells[i])
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// end is an address with its colon, and a port, as ss prints them.
func end(a netip.AddrPort) (address, port string) {
	port = "*"
	if a.Port() != 0 {
		port = fmt.Sprint(a.Port())
	}
	if !a.Addr().Is6() {
		return a.Addr().String() + ":", port
	}
	address = "[" + a.Addr().WithZone("").String() + "]"
	if zone := a.Addr().Zone(); zone != "" {
		address += "%" + zone
	}
	return address + ":", port
}
