"""GLM-4.6V-Flash: GLM-4.1V in a newer release."""

from npukit.llm.families import glm4v

VISION = glm4v.VISION
