//go:build !race

#include "textflag.h"

// How far ahead of its copy a line of dst is asked for, in bytes and in lines.
#define AHEAD 512
#define AHEADLINES 8

// Asks for the line that begins at DI plus so many bytes, to write there: PREFETCHW ahead(DI).
#define OWN BYTE $0x0f; BYTE $0x0d; BYTE $0x8f; LONG $AHEAD
#define OWNAT BYTE $0x0f; BYTE $0x0d; BYTE $0x0b // PREFETCHW (BX)

#define LINE \
	MOVOU (SI), X0    \
	MOVOU 16(SI), X1  \
	MOVOU 32(SI), X2  \
	MOVOU 48(SI), X3  \
	MOVOU X0, (DI)    \
	MOVOU X1, 16(DI)  \
	MOVOU X2, 32(DI)  \
	MOVOU X3, 48(DI)

#define WIDE \
	VMOVDQU (SI), Y0    \
	VMOVDQU 32(SI), Y1  \
	VMOVDQU Y0, (DI)    \
	VMOVDQU Y1, 32(DI)

// Copies CX lines by COPY. The first ones are asked for together, and then one with each that is copied.
#define LINES(COPY) \
	MOVQ DI, BX               \
	MOVQ CX, DX               \
	CMPQ DX, $AHEADLINES      \
	JLE  first                \
	MOVQ $AHEADLINES, DX      \
first:                     \
	SUBQ DX, CX               \
	MOVQ DX, AX               \
ask:                       \
	OWNAT                     \
	ADDQ $64, BX              \
	DECQ DX                   \
	JNZ  ask                  \
	TESTQ CX, CX              \
	JZ   rest                 \
line:                      \
	OWN                       \
	COPY                      \
	ADDQ $64, SI              \
	ADDQ $64, DI              \
	DECQ CX                   \
	JNZ  line                 \
rest:                      \
	COPY                      \
	ADDQ $64, SI              \
	ADDQ $64, DI              \
	DECQ AX                   \
	JNZ  rest

// func ownLines(dst, src *byte, lines int)
TEXT ·ownLines(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ lines+16(FP), CX
	LINES(LINE)
	RET

// func ownWideLines(dst, src *byte, lines int)
TEXT ·ownWideLines(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ lines+16(FP), CX
	LINES(WIDE)
	VZEROUPPER
	RET

// func ownAhead(p *byte, lines int)
TEXT ·ownAhead(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), BX
	MOVQ lines+8(FP), CX

ask:
	OWNAT
	ADDQ $64, BX
	DECQ CX
	JNZ  ask
	RET
