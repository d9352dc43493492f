"""GLM-4.6V-Flash: a newer release of GLM-4.1V."""

from npukit.llm.families import glm4v

VISION = glm4v.VISION
