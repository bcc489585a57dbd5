package dv

import "github.com/rdma-netstack/rdma-netstack/dv/uverbs"

// What tests of package dv_test need to reach: events as the kernel would
// tell them, and the names objects have in them.

func (d *Device) Tell(e uverbs.AsyncEvent) { d.onEvent(e) }

func (d *Device) TxHandles(i int) (cq, qp uint64) {
	g := d.txObjects[i].generation.Load()
	return handle(handleTxCQ, i, g), handle(handleTxQP, i, g)
}

func (d *Device) RxHandles(i int) (cq, wq uint64) {
	return handle(handleRxCQ, i, 0), handle(handleRxWQ, i, 0)
}
