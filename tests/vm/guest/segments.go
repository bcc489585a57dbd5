//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// segments implements the subcommand: the guest's kernel sends a pattern as datagrams of one size,
// the last maybe shorter, by one call with UDP_SEGMENT.
func segments(args []string) error {
	fs := flag.NewFlagSet("segments", flag.ExitOnError)
	to := fs.String("to", "", "address and port")
	size, total := fs.Int("size", 0, "bytes of a datagram"), fs.Int("total", 0, "bytes of all")
	if err := fs.Parse(args); err != nil {
		return err
	}
	conn, err := net.Dial("udp", *to)
	if err != nil {
		return err
	}
	return errors.Join(sendSegments(conn.(*net.UDPConn), rig.SegmentPattern(*total),
		uint16(*size)), conn.Close())
}

// sendSegments sends b as datagrams of that many bytes.
func sendSegments(c *net.UDPConn, b []byte, size uint16) error {
	oob := make([]byte, unix.CmsgSpace(2))
	binary.NativeEndian.PutUint64(oob, uint64(unix.CmsgLen(2))) // linux uapi struct cmsghdr
	binary.NativeEndian.PutUint32(oob[8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(oob[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(oob[unix.CmsgLen(0):], size)
	n, _, err := c.WriteMsgUDP(b, oob, nil)
	if err == nil && n != len(b) {
		err = fmt.Errorf("sent %d of %d bytes", n, len(b))
	}
	return err
}
