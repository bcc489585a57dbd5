#include "textflag.h"

// Barrier operands: Arm ARM C6.2, DMB: 0x1 OSHLD, 0x2 OSHST; DSB: 0xE ST.

// func ToDevice()
TEXT ·ToDevice(SB), NOSPLIT, $0-0
	DMB $0x2
	RET

// func FromDevice()
TEXT ·FromDevice(SB), NOSPLIT, $0-0
	DMB $0x1
	RET

// func FlushWC()
TEXT ·FlushWC(SB), NOSPLIT, $0-0
	DSB $0xE
	RET

// func store64(p unsafe.Pointer, v uint64)
TEXT ·store64(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	MOVD R1, (R0)
	RET

// func copyLines(dst, src unsafe.Pointer, n int)
TEXT ·copyLines(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2
line:
	LDP 0(R1), (R3, R4)
	LDP 16(R1), (R5, R6)
	LDP 32(R1), (R7, R8)
	LDP 48(R1), (R9, R10)
	STP (R3, R4), 0(R0)
	STP (R5, R6), 16(R0)
	STP (R7, R8), 32(R0)
	STP (R9, R10), 48(R0)
	ADD $64, R1
	ADD $64, R0
	SUBS $1, R2
	BNE line
	RET
