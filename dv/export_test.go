package dv

import (
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// What tests of package dv_test need to reach: events as the kernel would
// tell them, and the names objects have in them.

func (d *Device) Tell(e uverbs.AsyncEvent) { d.onEvent(e) }

func (d *Device) TxHandles(i int) (cq, qp uint64) {
	g := d.txObjects[i].generation.Load()
	return objectHandle(handleTxCQ, i, g), objectHandle(handleTxQP, i, g)
}

func (d *Device) RxHandles(i int) (cq, wq uint64) {
	return objectHandle(handleRxCQ, i, 0), objectHandle(handleRxWQ, i, 0)
}

// MicrosoftRSSKey is the key of the published test vectors ("Verifying the RSS
// hash calculation", Windows driver documentation). It spreads a little better
// than the symmetric one, and a flow and its reverse hash apart.
func MicrosoftRSSKey() RSSKey {
	return RSSKey{
		0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
		0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
		0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
		0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
	}
}

// SetClock replaces the clock by which the queue judges how long it stands still.
func (q *TxQueue) SetClock(now func() time.Time) { q.recovery.now = now }

// ConsecutiveResets is the number that has the device given up when it is too high.
func (q *TxQueue) ConsecutiveResets() int { return q.recovery.consecutiveResets }
