// Package mmio is memory that a device also sees: mapped pages, atomic big-endian access by offset,
// named barriers and the one kind of store a device register takes.
//
// A Region is a piece of such memory with a fixed address. It never lives on the Go heap, so the
// garbage collector neither moves nor scans it: keep no Go pointers in it.
//
// Which access to use:
//
//   - Bytes and Slice, with ordinary loads and stores, for memory the other
//     side may not look at yet (a descriptor before its doorbell) or no longer
//     writes (a frame after its completion). The compiler may split, merge and
//     reorder these.
//   - LoadBE32, StoreBE32 and their 64-bit forms for words the other side may
//     read or write at any moment: doorbell records, ownership words. Each is
//     one access; loads acquire, stores release.
//   - Doorbell64 for device registers. It is one plain 8-byte store: sync/atomic
//     stores are locked exchanges on amd64, which device memory takes as a bus
//     lock.
//
// Between them go the barriers, named for their purpose:
//
//	write descriptors
//	ToDevice()                 descriptors before the record that publishes them
//	StoreBE32(record, counter)
//	ToDevice()                 the record before the register
//	Doorbell64(register, v)
//	FlushWC()                  only when the register is mapped write-combining
//
//	LoadBE32(ownership word)   ours now?
//	FromDevice()               only then the rest of the completion, and the payload
//
// All assembly of this module and nearly all its unsafe code is in this package.
package mmio
