package pcie

// Receive queues that several queue pairs share: XRC SRQs, and memory pools (RMP), with which the
// driver implements a verbs SRQ. The model stores the context that the driver writes; no queue pair
// consumes their receive WQEs.

// sharedKind is the position of the context of a kind of shared queue.
type sharedKind struct {
	at, size int   // in commands and replies, bytes
	limit    field // low water mark of receive WQEs, in the context
}

// Contexts (linux include/linux/mlx5/mlx5_ifc.h): xrc_srqc at byte 16; rmpc at byte 32, with the
// work queue at byte 48 of rmpc.
var (
	xrcQueue   = &sharedKind{16, xrcContextSize, field{224, 16}}
	memoryPool = &sharedKind{queueContext, queueContextSize, field{8*queueWQ + 48, 16}}

	armLimit       = field{112, 16} // lwm of ARM_XRC_SRQ
	modifyRMPBits  = field{128, 64}
	modifyRMPLimit = uint64(1)
)

const (
	xrcContextSize = 64
	srqPages       = 272
)

// sharedQueue is a shared receive queue: its context.
type sharedQueue struct {
	kind *sharedKind
	ctx  []byte
}

func createShared(k *sharedKind) func(*Function, []byte, []byte) error {
	return func(f *Function, in, out []byte) error {
		n, err := f.numbers[kindQueue].alloc(firstPlain)
		if err != nil {
			return err
		}
		q := &sharedQueue{kind: k, ctx: make([]byte, k.size)}
		copy(q.ctx, part(in, k.at, k.size))
		f.objects.srqs[n] = q
		number.set(out, uint64(n))
		return nil
	}
}

func (f *Function) queryShared(in, out []byte) error {
	q, err := find(f.objects.srqs, "shared receive queue", number.u32(in))
	if err != nil {
		return err
	}
	copy(out[q.kind.at:], q.ctx)
	return nil
}

// armXRC executes ARM_XRC_SRQ: the driver requests an event when fewer WQEs than a limit are left.
func (f *Function) armXRC(in, _ []byte) error {
	q, err := find(f.objects.srqs, "shared receive queue", number.u32(in))
	if err != nil {
		return err
	}
	q.kind.limit.set(q.ctx, armLimit.get(in))
	return nil
}

// modifyRMP executes MODIFY_RMP: state and limit of an RMP.
func (f *Function) modifyRMP(in, _ []byte) error {
	q, err := find(f.objects.srqs, "memory pool", number.u32(in))
	if err != nil {
		return err
	}
	ctx := part(in, q.kind.at, q.kind.size)
	queueState.set(q.ctx, queueState.get(ctx))
	if modifyRMPBits.get(in)&modifyRMPLimit != 0 {
		q.kind.limit.set(q.ctx, q.kind.limit.get(ctx))
	}
	return nil
}

func (f *Function) destroyShared(in, _ []byte) error {
	n := number.u32(in)
	if _, err := find(f.objects.srqs, "shared receive queue", n); err != nil {
		return err
	}
	delete(f.objects.srqs, n)
	f.numbers[kindQueue].give(n)
	return nil
}
