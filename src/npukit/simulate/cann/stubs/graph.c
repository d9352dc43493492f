/* libgraph.so: torch_npu before 2.6 announces operators to the graph engine when it is loaded; nobody here would build
 * a graph of them, so that nothing is kept. The names are those that the C++ compiler gave the engine's functions. */
#define DOES_NOTHING(name) \
    void name(void); \
    void name(void) {}

DOES_NOTHING(_ZN2ge12AscendStringC1EPKc)
DOES_NOTHING(_ZN2ge23OperatorCreatorRegisterC1EPKcRKSt8functionIFNS_8OperatorERKNS_12AscendStringEEE)
DOES_NOTHING(_ZN2ge8Operator12AttrRegisterEPKcb)
DOES_NOTHING(_ZN2ge8Operator12AttrRegisterEPKcl)
DOES_NOTHING(_ZN2ge8Operator13InputRegisterEPKc)
DOES_NOTHING(_ZN2ge8Operator14OutputRegisterEPKc)
DOES_NOTHING(_ZN2ge8Operator20DynamicInputRegisterEPKcjb)
DOES_NOTHING(_ZN2ge8Operator20RequiredAttrRegisterEPKc)
DOES_NOTHING(_ZN2ge8Operator27DynamicInputRegisterByIndexEPKcjm)
DOES_NOTHING(_ZN2ge8OperatorC2EPKcS2_)
DOES_NOTHING(_ZN2ge8OperatorC2ERKNS_12AscendStringES3_)
