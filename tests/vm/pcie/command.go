package pcie

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// Command queue entry, 64 bytes (linux include/linux/mlx5/device.h, struct mlx5_cmd_layout).
const (
	cmdEntrySize  = 64
	entryInLen    = 0x04
	entryInPtr    = 0x08
	entryIn       = 0x10
	entryOut      = 0x20
	entryOutPtr   = 0x30
	entryOutLen   = 0x38
	entryToken    = 0x3c
	entryStatus   = 0x3c // word with token, signature and ownership; ownership is bit 0
	entryInline   = 16
	ownerHardware = 1
)

// Mailbox block (struct mlx5_cmd_prot_block): 512 bytes of data, then the pointer to the
// next block.
const (
	boxData  = 512
	boxNext  = 0x230
	boxToken = 0x23d
	boxSize  = 0x240
)

// maxCommand bounds the input and output of one command: the largest is a page list of 64
// Ki entries.
const maxCommand = 1 << 20

// runCommands executes the commands in the slots that the doorbell names, lowest first, and raises
// their completion events.
func (f *Function) runCommands(slots uint32) {
	for ; slots != 0; slots &= slots - 1 {
		slot := bits.TrailingZeros32(slots)
		listeners := f.eqs.listeners(eventCommand)
		if err := f.runCommand(f.cmdQueue + uint64(slot)*cmdEntrySize); err != nil {
			f.log.Error("firmware command unreadable", "slot", slot, "error", err)
			continue
		}
		var data [28]byte
		binary.BigEndian.PutUint32(data[:], 1<<slot)
		f.eqs.raise(listeners, eventCommand, 0, data)
	}
}

// runCommand reads one entry with its input mailboxes, executes it, and writes output,
// status and ownership back, the ownership bit last.
func (f *Function) runCommand(addr uint64) error {
	entry, err := f.dma.region(addr, cmdEntrySize)
	if err != nil {
		return fmt.Errorf("command queue entry: %w", err)
	}
	e := entry.Bytes()
	inLen, outLen := be32(e, entryInLen), be32(e, entryOutLen)
	if inLen > maxCommand || outLen > maxCommand || inLen < entryInline || outLen < 8 {
		return fmt.Errorf("command of %d bytes in, %d out", inLen, outLen)
	}
	in, err := f.gatherInput(e, int(inLen))
	if err != nil {
		return err
	}
	out := make([]byte, max(outLen, entryInline))
	f.execute(in, out)
	if err := f.scatterOutput(e, out[:outLen]); err != nil {
		return err
	}
	handBack(entry)
	return nil
}

// handBack clears the ownership bit of a command entry in one store that follows all others.
func handBack(entry *mmio.Region) {
	w := entry.LoadBE32(entryStatus)
	entry.StoreBE32(entryStatus, w&^0xff)
}

// gatherInput joins the inline part of the input and its mailboxes.
func (f *Function) gatherInput(e []byte, n int) ([]byte, error) {
	in := make([]byte, n)
	got := copy(in, e[entryIn:entryIn+entryInline])
	for next := be64(e, entryInPtr) &^ 0x1ff; got < n; {
		box, err := f.dma.bytes(next, boxSize)
		if err != nil {
			return nil, fmt.Errorf("input mailbox: %w", err)
		}
		got += copy(in[got:], box[:boxData])
		next = be64(box, boxNext)
	}
	return in, nil
}

// scatterOutput spreads the output over the entry and the mailboxes the driver prepared.
func (f *Function) scatterOutput(e, out []byte) error {
	n := copy(e[entryOut:entryOut+entryInline], out)
	for next := be64(e, entryOutPtr) &^ 0x1ff; n < len(out); {
		box, err := f.dma.bytes(next, boxSize)
		if err != nil {
			return fmt.Errorf("output mailbox: %w", err)
		}
		n += copy(box[:boxData], out[n:])
		box[boxToken] = e[entryToken]
		next = be64(box, boxNext)
	}
	return nil
}

func be32(b []byte, off int) uint32 { return binary.BigEndian.Uint32(b[off:]) }
func be64(b []byte, off int) uint64 { return binary.BigEndian.Uint64(b[off:]) }
